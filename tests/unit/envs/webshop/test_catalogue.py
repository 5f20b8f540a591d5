import gzip
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from rollart_hpc.envs.webshop import WebShop
from rollart_hpc.envs.webshop.catalogue import (
    SHIPPED,
    draw_price,
    draw_price_limit,
    limited,
    load_catalogue,
    write_records,
)
from rollart_hpc.envs.webshop.generate import generate
from tests.unit.envs.webshop.small_shop import GOAL, RUNNER


def test_what_ships_is_what_the_script_makes_and_is_small(tmp_path: Path):
    products, goals = generate(num_products=1000, seed=0)
    write_records(tmp_path / "products.jsonl", products)
    write_records(tmp_path / "goals.jsonl", goals)
    for name in ["products.jsonl.gz", "goals.jsonl.gz"]:
        shipped = (SHIPPED / name).read_bytes()
        assert gzip.decompress(shipped) == gzip.decompress((tmp_path / name).read_bytes())
        assert len(shipped) < 500_000


def test_what_ships_is_varied_and_every_goal_is_met_by_its_product():
    catalogue = load_catalogue(SHIPPED)
    assert len(catalogue.products) == 1000 == len({product.title for product in catalogue.products})
    assert set(Counter(product.query for product in catalogue.products).values()) == {25}
    assert len(catalogue.goals) > 1400
    for goal in catalogue.goals:
        product = catalogue.by_asin[goal.asin]
        values = {value for values in product.options.values() for value in values}
        assert set(goal.attributes) <= set(product.attributes)
        assert set(goal.options) <= values
        assert goal.price_limit is not None
        assert product.price < goal.price_limit
        assert all(text in goal.instruction for text in (*goal.attributes, *goal.options, product.query))
        text = " ".join([product.title, *product.features, product.description]).lower()
        assert all(attribute in text for attribute in product.attributes)


def test_prices_are_drawn_as_the_rules_say():
    assert draw_price([], Random(0)) == (100.0, "$100.0")
    assert draw_price([12.5], Random(0)) == (12.5, "$12.5")
    price, tag = draw_price([10.0, 20.0, 90.0], Random(0))
    assert 10 <= price <= 20
    assert tag == "$10.0 to $20.0"


@pytest.mark.parametrize(
    ("price", "limits"),
    # of the next four multiples of 10 the larger of two: never the first
    [
        (4.0, {20.0, 30.0, 40.0}),
        (10.0, {30.0, 40.0, 50.0}),
        (42.0, {60.0, 70.0, 80.0}),
        (965.0, {980.0, 990.0}),
        (975.0, {990.0}),
        (980.0, {None}),
        (5000.0, {None}),
    ],
)
def test_limits_are_drawn_as_the_rules_say(price: float, limits: set[float | None]):
    assert {draw_price_limit(price, Random(seed)) for seed in range(200)} == limits


def test_a_limit_is_told_in_the_instruction():
    assert limited("i need a mug.", 20.0) == "i need a mug, and price lower than 20.00 dollars"
    assert limited("i need a mug.", None) == "i need a mug"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no products.jsonl nor products.jsonl.gz; expected a catalogue"),
        ({"products.jsonl": ""}, "has no goals.jsonl"),
        ({"products.jsonl": "{", "goals.jsonl": ""}, "products.jsonl, line 1: .*expected the fields asin, title"),
        ({"products.jsonl": '{"asin": "A"}\n', "goals.jsonl": ""}, "missing required field `title`"),
        ({"products.jsonl": "", "goals.jsonl": '{"colour": 1}\n'}, "goals.jsonl, line 1: .*unknown field `colour`"),
        ({"products.jsonl": "", "goals.jsonl": ""}, "has no goals"),
        ({"products.jsonl.gz": "junk", "goals.jsonl": ""}, "products.jsonl.gz: .*expected a whole file of gzip"),
        (
            {"products.jsonl": "", "goals.jsonl": '{"asin": "A", "instruction": "i", "attributes": []}\n'},
            "asks for 'A'; the catalogue has no such product",
        ),
    ],
    ids=[
        "nothing",
        "no goals file",
        "no JSON",
        "no title",
        "unknown field",
        "empty",
        "no gzip",
        "goal without product",
    ],
)
def test_a_folder_that_is_no_catalogue_is_refused(tmp_path: Path, files: dict[str, str], message: str):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        WebShop(catalogue=str(tmp_path))


def test_products_with_one_asin_are_refused(tmp_path: Path):
    write_records(tmp_path / "products.jsonl", [RUNNER, RUNNER])
    write_records(tmp_path / "goals.jsonl", [GOAL])
    with pytest.raises(ValueError, match="same asin"):
        WebShop(catalogue=str(tmp_path))
