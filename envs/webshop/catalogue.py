"""The goods and goals of one shop, as they lie in a folder, and the one copy of them that a process holds.

A folder has ``products.jsonl`` and ``goals.jsonl``, plain or with ``.gz``, one record a line. Invariants: a loaded
catalogue never changes and is shared by all threads; what chance has a part in (the price of a product with a range,
the limit of a goal) was drawn when the folder was made, so a goal is the same in every process and every run.
"""

from __future__ import annotations

import functools
import gzip
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec

from rollart_hpc.envs.webshop.search_index import SearchIndex

LEVEL_MARK = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
SHIPPED = Path(__file__).parent / "catalogue"
_PRICE_STEPS = [10.0 * number for number in range(1, 100)]
_PRICE_OF_UNPRICED = 100.0
_loading = threading.Lock()


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """One buyer's opinion."""

    title: str
    score: str
    body: str = ""


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One product, with what its pages show and what only the reward knows."""

    asin: str
    title: str
    price: float
    """What it costs, in dollars."""
    price_tag: str
    """What its page says: one price or a range."""
    description: str = ""
    features: tuple[str, ...] = ()
    options: dict[str, tuple[str, ...]] = {}
    """Values to choose from by the name of the choice, lower-case."""
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()
    attributes: tuple[str, ...] = ()
    """Never shown as such."""
    query: str = ""
    """The words under which it was collected; the reward's idea of its type."""
    product_category: str = ""
    """Levels from the department down, with `LEVEL_MARK` between them."""
    nouns: tuple[str, ...] = ()
    """Those of the title, lower-case, with repetitions."""

    @property
    def searched_text(self) -> str:
        """What the search looks at."""
        choices = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.features[:1], choices])


class Goal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the shopper is asked to buy; also the fields of a task."""

    asin: str
    """Of the product that the instruction was written for."""
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Values to choose."""
    price_limit: float | None = None
    """Dollars; None for none."""

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise ValueError("a goal needs an instruction")
        if self.price_limit is not None and not self.price_limit > 0:
            raise ValueError(f"price_limit is {self.price_limit:g}; expected more than 0, or null for none")


class Catalogue:
    """A shop's goods, goals and search; read-only."""

    def __init__(self, products: Iterable[Product], goals: Sequence[Goal]) -> None:
        self.products = tuple(products)
        self.by_asin = {product.asin: product for product in self.products}
        self.goals = tuple(goals)
        if len(self.by_asin) < len(self.products):
            raise ValueError("the catalogue has products with the same asin; expected one of each")
        for goal in self.goals:
            if goal.asin not in self.by_asin:
                raise ValueError(
                    f"a goal asks for {goal.asin!r}; the catalogue has no such product: {goal.instruction}"
                )
        self._index = SearchIndex(product.searched_text for product in self.products)

    def search(self, query: str, limit: int) -> tuple[Product, ...]:
        """The best matches, best first."""
        return tuple(self.products[number] for number in self._index.search(query, limit))


def load_catalogue(folder: Path) -> Catalogue:
    """The catalogue of a folder; read once a process, however many threads ask.

    Raises:
        ValueError: a file is missing or a line of it is no product or goal; says which.
    """
    with _loading:
        return _load(folder.resolve())


@functools.cache
def _load(folder: Path) -> Catalogue:
    return Catalogue(read_records(folder / "products.jsonl", Product), read_records(folder / "goals.jsonl", Goal))


RecordT = TypeVar("RecordT", Product, Goal)


def read_records(path: Path, record: type[RecordT]) -> list[RecordT]:
    """All records of a JSONL file, or of the one with ``.gz`` after its name.

    Raises:
        ValueError: neither file is there, it is no whole file of gzip, or a line is no such record.
    """
    packed = path.with_name(f"{path.name}.gz")
    if not path.exists() and not packed.exists():
        raise ValueError(f"{path.parent} has no {path.name} nor {packed.name}; expected a catalogue of WebShop")
    is_packed = not path.exists()
    decoder = msgspec.json.Decoder(record)
    records: list[RecordT] = []
    try:
        with gzip.open(packed) if is_packed else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    records.append(decoder.decode(line))
                except msgspec.DecodeError as error:
                    where = f"{packed if is_packed else path}, line {number}"
                    expected = ", ".join(record.__struct_fields__)
                    raise ValueError(f"{where}: {error}; expected the fields {expected}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{packed}: {error}; expected a whole file of gzip: make or copy it again") from error
    return records


def write_records(path: Path, records: Iterable[Product | Goal]) -> None:
    """Writes ``path`` with ``.gz`` after its name; equal records give equal bytes on one version of zlib."""
    encoder = msgspec.json.Encoder()
    packed = path.with_name(f"{path.name}.gz")
    # Without a name and a time in the header the bytes depend on the records alone.
    with packed.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as lines:
        for record in records:
            lines.write(encoder.encode(record) + b"\n")


def draw_price(pricing: Sequence[float], rng: Random) -> tuple[float, str]:
    """Price and price tag of a product: its only price, one within its first two, or 100 where it has none."""
    if len(pricing) >= 2:
        return rng.uniform(pricing[0], pricing[1]), f"${pricing[0]} to ${pricing[1]}"
    price = pricing[0] if pricing else _PRICE_OF_UNPRICED
    return price, f"${price}"


def draw_price_limit(price: float, rng: Random) -> float | None:
    """The larger of two of the four next multiples of 10 above the price, up to 990; None where fewer than two are
    left."""
    steps = [step for step in _PRICE_STEPS if step > price][:4]
    return max(rng.sample(steps, 2)) if len(steps) >= 2 else None


def limited(instruction: str, price_limit: float | None) -> str:
    """The instruction with its price limit in words."""
    limit = f", and price lower than {price_limit:.2f} dollars" if price_limit is not None else ""
    return instruction.strip(".") + limit
