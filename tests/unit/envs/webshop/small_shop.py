"""A shop that is small enough to check on paper: two kinds of shoes, a lamp, and 23 mugs to turn pages with."""

from pathlib import Path
from typing import Any

from rollart_hpc.envs.webshop import WebShop
from rollart_hpc.envs.webshop.catalogue import Goal, Product, Review, write_records

ARROW = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"


def category(*levels: str) -> str:
    return f" {ARROW} ".join(levels)


RUNNER = Product(
    asin="B000RUNNER",
    title="Acme Runner Shoes",
    price=42.0,
    price_tag="$42.0",
    description="A quick drying shoe.",
    features=("Rubber", "Sole with grip"),
    options={"color": ("black", "navy blue"), "size": ("9", "10", "11")},
    rating="4.5",
    reviews=(Review(title="Good", score="5.0", body="Fits."),),
    attributes=("non slip", "memory foam"),
    query="running shoes",
    product_category=category("Clothing", "Shoes", "Athletic"),
    nouns=("acme", "runner", "shoes"),
)
TRAIL = Product(
    asin="B00TRAIL00",
    title="Bolt Trail Shoes",
    price=61.5,
    price_tag="$55.0 to $70.0",
    options={"color": ("olive green",), "size": ("9",)},
    attributes=("non slip", "steel toe"),
    query="trail shoes",
    product_category=category("Clothing", "Shoes", "Outdoor"),
    nouns=("bolt", "trail", "shoes"),
)
LAMP = Product(
    asin="B00000LAMP",
    title="Glow Desk Lamp",
    price=20.0,
    price_tag="$20.0",
    description="Dims softly.",
    options={"color": ("red",)},
    attributes=("non slip",),
    query="lamps",
    product_category=category("Home", "Lighting"),
    nouns=("glow", "desk", "lamp"),
)
MUGS = tuple(
    Product(asin=f"B0000MUG{number:02d}", title=f"Mug {number}", price=5.0, price_tag="$5.0", query="mugs")
    for number in range(1, 24)
)
GOAL = Goal(
    asin="B000RUNNER",
    instruction="i need non slip running shoes in black, size 9, and price lower than 50.00 dollars",
    attributes=("non slip",),
    options=("black", "9"),
    price_limit=50.0,
)
HEAD = f"Instruction: [SEP] {GOAL.instruction} [SEP] "
ITEM = (
    f"{HEAD}Back to Search [SEP] < Prev [SEP] color [SEP] black [SEP] navy blue [SEP] size [SEP] 9 [SEP] 10 [SEP] 11 "
    "[SEP] Acme Runner Shoes [SEP] Price: $42.0 [SEP] Rating: 4.5 [SEP] Description [SEP] Features [SEP] Reviews "
    "[SEP] Buy Now"
)
TO_RUNNER = ["search[acme runner]", "click[B000RUNNER]"]


def open_shop(
    folder: Path,
    *,
    products: tuple[Product, ...] = (RUNNER, TRAIL, LAMP, *MUGS),
    goals: tuple[Goal, ...] = (GOAL,),
    **arguments: Any,
) -> WebShop:
    write_records(folder / "products.jsonl", products)
    write_records(folder / "goals.jsonl", goals)
    return WebShop(catalogue=str(folder), **arguments)
