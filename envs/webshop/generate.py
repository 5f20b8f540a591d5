"""Makes the catalogue that ships: 1,000 invented products of 40 kinds, and goals that each can be met in full.

    python -m rollart_hpc.envs.webshop.generate FOLDER [--products 1000] [--seed 0]

Invariants: the same arguments give the same records; no two products have the same title or ASIN; every attribute
of a product can be read on one of its pages; no name is that of a real brand on purpose.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from rollart_hpc.envs.webshop.catalogue import (
    Goal,
    Product,
    Review,
    draw_price,
    draw_price_limit,
    limited,
    write_records,
)

_TYPES_FILE = Path(__file__).parent / "product_types.toml"
_ASIN_CHARACTERS = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_ONSETS = ["Bra", "Cal", "Dor", "Eru", "Fen", "Gal", "Hol", "Ives", "Jun", "Kel", "Lum", "Mar", "Nor", "Ost", "Per"]
_ENDINGS = ["bury", "dano", "fell", "gant", "kori", "lane", "mere", "nova", "quist", "rell", "sway", "tova", "vale"]
_NAMES_OF_LINES = """
    Alder Basin Cinder Delta Ember Fjord Glade Harbor Islet Juniper Kestrel Lantern Meadow Nimbus Orchard Pebble Quarry
    Ridge Summit Thistle Umbra Vista Willow Yonder Zephyr Anchor Beacon Canyon Drift Echo Fern Grove Heron Inlet
"""
_LINES = _NAMES_OF_LINES.split()
_FEATURES = [
    "{attribute}: made for {use}",
    "Our customers choose it because it is {attribute} and simple to live with",
    "Carefully tested, {attribute}, checked by hand before it leaves us",
    "{attribute} as standard in this series",
]
_DESCRIPTIONS = [
    "The {brand} {line} is our answer for {use}. It is {attributes}, and it comes with a year of warranty.",
    "{brand} has made {query} for {years} years. This one is {attributes}. A good choice for {use}.",
    "Looking for {query} for {use}? The {line} series is {attributes} and ships within two days.",
]
_REVIEWS = [
    ("Does what it should", "5.0", "Bought it for {use} and have no complaint."),
    ("Fine for the price", "4.0", "Arrived on time. The {line} looks as in the pictures."),
    ("Not for me", "2.0", "I expected something else from {brand}."),
]
_INSTRUCTIONS = [
    "find me {attributes} {query}{with_options}",
    "i am looking for {query} that are {attributes_and}{in_options}",
    "i need {attributes_and} {query}{in_options}",
    "i want to buy {query}{in_options}. it has to be {attributes_and}",
    "please show me some {attributes} {query}{with_options}",
]


class ProductType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of product."""

    query: str
    nouns: tuple[str, ...]
    product_category: str
    attributes: tuple[str, ...]
    options: dict[str, str]
    """Name of the values by the name of the choice."""
    prices: tuple[float, float]
    use: str


class _TypesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    values: dict[str, tuple[str, ...]]
    types: tuple[ProductType, ...]


def generate(*, num_products: int, seed: int) -> tuple[list[Product], list[Goal]]:
    """Products of all kinds in turn and goals in random order, one or two a product."""
    kinds = msgspec.convert(tomllib.loads(_TYPES_FILE.read_text()), _TypesFile)
    rng = Random(seed)
    names = [(onset + ending, line) for onset in _ONSETS for ending in _ENDINGS for line in _LINES]
    if num_products > len(names):
        raise ValueError(f"{num_products} products are asked for; there are names for {len(names)}")
    products: dict[str, Product] = {}
    goals: list[Goal] = []
    for number, (brand, line) in enumerate(rng.sample(names, num_products)):
        kind = kinds.types[number % len(kinds.types)]
        asin = _new_asin(rng, products)
        products[asin] = _product(asin, brand, line, kind, kinds.values, rng)
        goals.extend(_goal(products[asin], rng) for _ in range(rng.choice([1, 2])))
    rng.shuffle(goals)
    return list(products.values()), goals


def _new_asin(rng: Random, taken: dict[str, Product]) -> str:
    while (asin := "B0" + "".join(rng.choices(_ASIN_CHARACTERS, k=8))) in taken:
        pass
    return asin


def _product(
    asin: str, brand: str, line: str, kind: ProductType, values: dict[str, tuple[str, ...]], rng: Random
) -> Product:
    attributes = rng.sample(kind.attributes, rng.randint(4, 6))
    in_title, in_features, in_description = attributes[:2], attributes[2:-1], attributes[-1:]
    price, price_tag = draw_price(_pricing(kind.prices, rng), rng)
    names = {"brand": brand, "line": line, "query": kind.query, "use": kind.use, "years": rng.randint(3, 40)}
    features = [
        template.format(attribute=attribute, **names)
        for attribute, template in zip(in_features, rng.sample(_FEATURES, len(in_features)), strict=True)
    ]
    reviews = rng.sample(_REVIEWS, rng.choice([0, 0, 1, 2]))
    return Product(
        asin=asin,
        title=f"{brand} {line} {_titled(kind.query)}, {_titled(' and '.join(in_title))}",
        price=price,
        price_tag=price_tag,
        description=rng.choice(_DESCRIPTIONS).format(attributes=" and ".join(in_description), **names),
        features=tuple(feature[0].upper() + feature[1:] for feature in features),
        options={choice: _some(values[name], rng) for choice, name in kind.options.items()},
        rating=str(rng.choice([3.9, 4.1, 4.3, 4.5, 4.7])) if reviews else "N.A.",
        reviews=tuple(Review(title=title, score=score, body=body.format(**names)) for title, score, body in reviews),
        attributes=tuple(attributes),
        query=kind.query,
        product_category=kind.product_category,
        nouns=(brand.lower(), line.lower(), *kind.nouns),
    )


def _pricing(prices: tuple[float, float], rng: Random) -> list[float]:
    """One price for most products, a range for some, none for a few."""
    price = round(rng.uniform(*prices), 2)
    return rng.choices([[price], [price, round(price * 1.3, 2)], []], [84, 13, 3])[0]


def _some(values: Sequence[str], rng: Random) -> tuple[str, ...]:
    """At least three values, or all there are, in their usual order."""
    chosen = set(rng.sample(values, rng.randint(min(3, len(values)), min(7, len(values)))))
    return tuple(value for value in values if value in chosen)


def _goal(product: Product, rng: Random) -> Goal:
    attributes = rng.sample(product.attributes, rng.randint(1, 3))
    choices = rng.sample(sorted(product.options), rng.randint(1, len(product.options)))
    options = {choice: rng.choice(product.options[choice]) for choice in choices}
    named = [f"{choice}: {value}" for choice, value in options.items()]
    loose = [_in_words(choice, value) for choice, value in options.items()]
    instruction = rng.choice(_INSTRUCTIONS).format(
        attributes=", ".join(attributes),
        attributes_and=" and ".join(attributes),
        query=product.query,
        with_options=f" with {', and '.join(named)}",
        in_options="".join(f", {phrase}" for phrase in loose),
    )
    price_limit = draw_price_limit(product.price, rng)
    return Goal(
        asin=product.asin,
        instruction=limited(instruction, price_limit),
        attributes=tuple(attributes),
        options=tuple(options.values()),
        price_limit=price_limit,
    )


def _in_words(choice: str, value: str) -> str:
    if choice == "color":
        return f"in {value}"
    if choice in {"flavor", "scent", "style"}:
        return f"{value} {choice}"
    return f"{choice} {value}" if choice == "size" else value


def _titled(text: str) -> str:
    return " ".join(word[0].upper() + word[1:] for word in text.split())


def main() -> None:
    """Writes the two files of a catalogue."""
    parser = argparse.ArgumentParser(prog="python -m rollart_hpc.envs.webshop.generate", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--products", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    products, goals = generate(num_products=arguments.products, seed=arguments.seed)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_records(arguments.folder / "products.jsonl", products)
    write_records(arguments.folder / "goals.jsonl", goals)


if __name__ == "__main__":
    main()
