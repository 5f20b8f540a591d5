"""Makes a catalogue of WebShop's own data, which its users download: items_shuffle, items_ins_v2, items_human_ins.

    python -m rollart_hpc.envs.webshop.convert FOLDER --items items_shuffle.json --attributes items_ins_v2.json \\
        --instructions items_human_ins.json [--products N] [--reviews reviews.json] [--nouns en_core_web_lg]

Without ``--instructions`` the goals are the synthetic ones, one for each combination of a product's options.

Invariants: products are those that WebShop itself takes, in its order; goals are in the order in which WebShop shuffles
them, so that the first 500 of all data are its test split and the next 1,000 its development split. Prices within a
range and limits, which WebShop draws anew at each start, are drawn once, by the product's ASIN and the instruction.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from rollart_hpc.envs.webshop.catalogue import (
    Goal,
    Product,
    Review,
    draw_price,
    draw_price_limit,
    limited,
    write_records,
)

_LONGEST_ASIN = 10
_SHUFFLE_SEED = 233
_CHUNK_CHARACTERS = 1 << 20
_BETWEEN = re.compile(r"[\s,]*")
_TITLE_WORD = re.compile(r"(?<!\w)[^\W\d_][\w'-]*")
_FUNCTION_WORD = re.compile(r"an?|and|as|at|by|for|from|in|into|of|off|on|or|over|per|plus|the|to|up|with|without")

Nouns = Callable[[str], Sequence[str]]


def convert(
    items: Iterable[Mapping[str, Any]],
    attributes: Mapping[str, Mapping[str, Any]],
    instructions: Mapping[str, Sequence[Mapping[str, Any]]] | None,
    *,
    reviews: Mapping[str, Mapping[str, Any]] | None = None,
    nouns: Nouns | None = None,
) -> tuple[list[Product], list[Goal]]:
    """Products and goals.

    Args:
        items: of items_shuffle.
        attributes: items_ins_v2, by ASIN.
        instructions: items_human_ins, by ASIN; None for synthetic goals.
        reviews: of reviews.json, by ASIN.
        nouns: those of a title; `title_words` when absent.

    Raises:
        ValueError: an item lacks a field; says which.
    """
    products: dict[str, Product] = {}
    goals: list[Goal] = []
    for number, item in enumerate(items):
        try:
            asin = item["asin"]
            if asin == "nan" or len(asin) > _LONGEST_ASIN or asin in products:
                continue
            known = attributes.get(asin, {})
            product = _product(item, known.get("attributes", ()), (reviews or {}).get(asin, {}), nouns or title_words)
            if instructions is None:
                new_goals = _synthetic_goals(product, known)
            else:
                new_goals = _human_goals(product, instructions.get(asin, ()))
            goals.extend(new_goals)
        except KeyError as error:
            raise ValueError(f"item {number} has no {error.args[0]!r}; got {', '.join(sorted(item))}") from error
        products[asin] = product
    Random(_SHUFFLE_SEED).shuffle(goals)
    return list(products.values()), goals


def title_words(title: str) -> list[str]:
    """The words of a title that are neither numbers nor function words: what stands in for its nouns without spaCy."""
    words = (word.lower() for word in _TITLE_WORD.findall(title))
    return [word for word in words if not _FUNCTION_WORD.fullmatch(word)]


def spacy_nouns(model: str) -> Nouns:
    """Nouns and names as spaCy's model tags them: WebShop's own rule, with ``en_core_web_lg``.

    Raises:
        ValueError: spaCy or the model is not installed.
    """
    try:
        # Heavy, and not a dependency.
        tag: Callable[[str], Iterable[Any]] = importlib.import_module("spacy").load(model)
    except (ImportError, OSError) as error:
        raise ValueError(
            f"spaCy's model {model!r} cannot be loaded: {error}; install both or leave out nouns"
        ) from error
    return lambda title: [token.text.lower() for token in tag(title) if token.pos_ in {"NOUN", "PROPN"}]


def array_objects(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON array, one after the other: the official file of products is larger than memory.

    Raises:
        ValueError: the file is no array of objects.
    """
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8") as file:
        text, at = file.read(_CHUNK_CHARACTERS), 1
        if not text.startswith("["):
            raise ValueError(f"{path} begins with {text[:20]!r}; expected a JSON array")
        while True:
            at = _skip(text, at)
            if text[at : at + 1] == "]":
                return
            try:
                value, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError as error:
                more = file.read(_CHUNK_CHARACTERS)
                if not more:
                    raise ValueError(f"{path} is no whole JSON array: {error}") from error
                text, at = text[at:] + more, 0
                continue
            if not isinstance(value, dict):
                raise ValueError(f"{path} has the element {str(value)[:20]!r}; expected objects")
            yield value


def _skip(text: str, begin: int) -> int:
    between = _BETWEEN.match(text, begin)
    return between.end() if between is not None else begin


def _product(item: Mapping[str, Any], attributes: Iterable[str], opinion: Mapping[str, Any], nouns: Nouns) -> Product:
    asin, title = item["asin"], item["name"]
    price, price_tag = draw_price(_pricing(item.get("pricing")), Random(asin))
    features = item["small_description"] or []
    return Product(
        asin=asin,
        title=title,
        price=price,
        price_tag=price_tag,
        description=item["full_description"] or "",
        features=tuple(features) if isinstance(features, list) else (features,),
        options=_options(item["customization_options"]),
        rating=str(opinion.get("average_rating", "N.A.")),
        reviews=tuple(_review(review) for review in opinion.get("reviews", ())),
        attributes=tuple(attributes),
        query=item["query"].lower().strip(),
        product_category=item["product_category"],
        nouns=tuple(nouns(title)),
    )


def _pricing(pricing: str | None) -> list[float]:
    """The numbers after each dollar sign: one, or the ends of a range."""
    amounts = (re.sub(r"[^\d.]", "", part) for part in (pricing or "").split("$")[1:])
    return [float(amount) for amount in amounts if amount][:2]


def _options(customization: Mapping[str, Sequence[Mapping[str, Any]] | None] | None) -> dict[str, tuple[str, ...]]:
    return {
        choice.lower(): tuple(content["value"].strip().replace("/", " | ").lower() for content in contents)
        for choice, contents in (customization or {}).items()
        if contents is not None
    }


def _review(review: Mapping[str, Any]) -> Review:
    score = review["score"] if "score" in review else review["stars"]
    return Review(title=str(review["title"]), score=str(score), body=str(review.get("review", review.get("body", ""))))


def _human_goals(product: Product, instructions: Iterable[Mapping[str, Any]]) -> Iterator[Goal]:
    for written in instructions:
        if not written["instruction_attributes"]:
            continue
        price_limit = draw_price_limit(product.price, Random(f"{product.asin} {written['instruction']}"))
        yield Goal(
            asin=product.asin,
            instruction=limited(written["instruction"], price_limit),
            attributes=tuple(written["instruction_attributes"]),
            options=tuple(written["instruction_options"]),
            price_limit=price_limit,
        )


def _synthetic_goals(product: Product, known: Mapping[str, Any]) -> Iterator[Goal]:
    instruction = known.get("instruction")
    if not instruction or not known["instruction_attributes"]:
        return
    price_limit = draw_price_limit(product.price, Random(product.asin))
    choices = sorted(product.options)
    for values in itertools.product(*(product.options[choice] for choice in choices)):
        named = ", and ".join(f"{choice}: {value}" for choice, value in zip(choices, values, strict=True))
        yield Goal(
            asin=product.asin,
            instruction=limited(f"{instruction} with {named}" if named else instruction, price_limit),
            attributes=tuple(known["instruction_attributes"]),
            options=values,
            price_limit=price_limit,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Converts WebShop's data into a catalogue."""
    parser = argparse.ArgumentParser(prog="python -m rollart_hpc.envs.webshop.convert", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="where the catalogue goes")
    parser.add_argument("--items", type=Path, required=True, help="items_shuffle.json")
    parser.add_argument("--attributes", type=Path, required=True, help="items_ins_v2.json")
    parser.add_argument("--instructions", type=Path, help="items_human_ins.json; synthetic goals without it")
    parser.add_argument("--reviews", type=Path, help="reviews.json")
    parser.add_argument("--products", type=int, help="the first ones only")
    parser.add_argument(
        "--nouns", metavar="MODEL", help="spaCy's model that finds them; all words of titles without it"
    )
    given = parser.parse_args(arguments)
    products, goals = convert(
        itertools.islice(array_objects(given.items), given.products),
        _read(given.attributes),
        _read(given.instructions) if given.instructions else None,
        reviews={opinion["asin"]: opinion for opinion in _read(given.reviews)} if given.reviews else None,
        nouns=spacy_nouns(given.nouns) if given.nouns else None,
    )
    if not goals:
        raise ValueError(f"{len(products)} products and no goal among them; do the files belong together?")
    given.folder.mkdir(parents=True, exist_ok=True)
    write_records(given.folder / "products.jsonl", products)
    write_records(given.folder / "goals.jsonl", goals)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
