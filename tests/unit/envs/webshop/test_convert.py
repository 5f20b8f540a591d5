"""Small files in the form of WebShop's own data become a catalogue that plays."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollart_hpc.envs.webshop import WebShop
from rollart_hpc.envs.webshop.catalogue import Review, load_catalogue
from rollart_hpc.envs.webshop.convert import array_objects, convert, main, spacy_nouns, title_words
from tests.unit.envs.webshop.small_shop import category

SHOE: dict[str, Any] = {
    "asin": "B0SHOE0001",
    "name": "Acme Running Shoes for Men, 2 Pairs",
    "query": " Running Shoes ",
    "category": "fashion",
    "product_category": category("Clothing", "Shoes"),
    "pricing": "$1,042.50",
    "full_description": "Light.",
    "small_description": ["Non slip", "Mesh"],
    "images": ["x.jpg"],
    "customization_options": {
        "Color": [{"value": " Black/White ", "image": "y.jpg"}, {"value": "Red"}],
        "Size": [{"value": "9"}],
        "Flavor": None,
    },
}
BARE = {
    **SHOE,
    "asin": "B0BARE0001",
    "pricing": None,
    "full_description": None,
    "small_description": None,
    "customization_options": "",
}
RANGED = {**SHOE, "asin": "B0RANGE001", "pricing": "$10.00 - $20.00", "small_description": "Only one"}
ITEMS = [SHOE, {**SHOE, "name": "again"}, {**SHOE, "asin": "nan"}, {**SHOE, "asin": "TOOLONG00001"}, BARE, RANGED]
ATTRIBUTES = {
    "B0SHOE0001": {
        "attributes": ["non slip"],
        "instruction": "Find me non slip shoes",
        "instruction_attributes": ["non slip"],
    },
    "B0BARE0001": {"attributes": [], "instruction": None},
}
INSTRUCTIONS = {
    "B0SHOE0001": [
        {
            "instruction": "i need red shoes.",
            "instruction_attributes": ["non slip"],
            "instruction_options": ["red", "9"],
            "worker_id": "A",
        },
        {"instruction": "skipped", "instruction_attributes": [], "instruction_options": []},
    ],
    "B0RANGE001": [{"instruction": "cheap shoes", "instruction_attributes": ["mesh"], "instruction_options": []}],
}
REVIEWS = [
    {
        "asin": "B0SHOE0001",
        "average_rating": "4.2",
        "reviews": [{"title": "Good", "stars": "5.0", "review": "Fits."}, {"title": "Fine", "score": 3}],
    }
]


def write(folder: Path, **contents: object) -> dict[str, Path]:
    paths = {name: folder / f"{name}.json" for name in contents}
    for name, content in contents.items():
        paths[name].write_text(json.dumps(content), encoding="utf-8")
    return paths


def test_official_files_become_a_catalogue_that_plays(tmp_path: Path):
    files = write(tmp_path, items=ITEMS, attributes=ATTRIBUTES, instructions=INSTRUCTIONS, reviews=REVIEWS)
    out = tmp_path / "out"
    main([str(out), *(text for name, path in files.items() for text in (f"--{name}", str(path)))])
    shop = WebShop(catalogue=str(out))
    red_shoes = next(number for number in range(2) if "red shoes" in shop.reset(seed=number, task={})[0])
    # 1,042.50 dollars have no limit above them.
    assert "[SEP] i need red shoes [SEP]" in shop.reset(seed=red_shoes, task={})[0]
    for action in ["search[running shoe]", "click[b0shoe0001]", "click[red]", "click[9]"]:
        shop.step(action)
    assert shop.step("click[buy now]")[1] == 1.0
    assert {product.asin for product in load_catalogue(out).products} == {"B0SHOE0001", "B0BARE0001", "B0RANGE001"}


def test_products_are_read_as_webshop_reads_them():
    products, _ = convert(ITEMS, ATTRIBUTES, INSTRUCTIONS, reviews={"B0SHOE0001": REVIEWS[0]})
    shoe, bare, ranged = products
    assert (shoe.price, shoe.price_tag, shoe.query) == (1042.5, "$1042.5", "running shoes")
    assert shoe.options == {"color": ("black | white", "red"), "size": ("9",)}
    assert shoe.nouns == ("acme", "running", "shoes", "men", "pairs")
    assert shoe.rating == "4.2"
    assert shoe.reviews == (
        Review(title="Good", score="5.0", body="Fits."),
        Review(title="Fine", score="3"),
    )
    assert (bare.price, bare.price_tag, bare.options, bare.features, bare.attributes) == (100.0, "$100.0", {}, (), ())
    assert 10 <= ranged.price <= 20
    assert (ranged.price_tag, ranged.features) == ("$10.0 to $20.0", ("Only one",))


def test_the_same_files_give_the_same_goals_whatever_else_they_hold():
    together = convert(ITEMS, ATTRIBUTES, INSTRUCTIONS)[1]
    alone = convert([RANGED], ATTRIBUTES, INSTRUCTIONS)[1]
    assert convert(ITEMS, ATTRIBUTES, INSTRUCTIONS)[1] == together
    assert alone[0] in together
    assert len(together) == 2


def test_goals_come_in_the_order_of_webshops_shuffle():
    # CPython's random.seed(233); random.shuffle(list(range(10)))
    items = [{**SHOE, "asin": f"B{number}"} for number in range(10)]
    wish = {"instruction_attributes": ["a"], "instruction_options": []}
    written = {f"B{number}": [{"instruction": str(number), **wish}] for number in range(10)}
    goals = convert(items, {}, written)[1]
    assert [int(goal.instruction.split(",")[0]) for goal in goals] == [5, 9, 0, 1, 4, 7, 6, 3, 8, 2]


def test_synthetic_goals_are_one_for_each_combination_of_options():
    goals = convert(ITEMS, ATTRIBUTES, None)[1]
    assert {goal.instruction: goal.options for goal in goals} == {
        "Find me non slip shoes with color: black | white, and size: 9": ("black | white", "9"),
        "Find me non slip shoes with color: red, and size: 9": ("red", "9"),
    }


@pytest.mark.parametrize("chunk_characters", [1, 7, 64, 1 << 20])
def test_arrays_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_characters: int):
    monkeypatch.setattr("rollart_hpc.envs.webshop.convert._CHUNK_CHARACTERS", chunk_characters)
    array = [{"a": "]},[ \u00e9"}, {"b": [1, {"c": None}]}, {"n": 12}]
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps(array, indent=indent), encoding="utf-8")
        assert list(array_objects(tmp_path / "a.json")) == array
    (tmp_path / "a.json").write_text("[]")
    assert list(array_objects(tmp_path / "a.json")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "expected a JSON array"),
        ("", "expected a JSON array"),
        ('[{"a": 1}, {"b"', "no whole JSON array"),
        ("[1]", "expected objects"),
    ],
)
def test_a_file_that_is_no_whole_array_is_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        list(array_objects(tmp_path / "a.json"))


def test_an_item_without_a_field_and_files_without_a_goal_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="item 0 has no 'name'; got asin"):
        convert([{"asin": "B1"}], {}, {})
    files = write(tmp_path, items=[SHOE], attributes={}, instructions={})
    with pytest.raises(ValueError, match="1 products and no goal among them"):
        main([str(tmp_path / "out"), *(text for name, path in files.items() for text in (f"--{name}", str(path)))])


def test_nouns_are_spacys_where_it_is_there_and_words_elsewhere(monkeypatch: pytest.MonkeyPatch):
    assert title_words("The 3-Pack of Men's Shoes 4K for X") == ["pack", "men's", "shoes", "x"]
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ValueError, match="spaCy's model 'en_core_web_lg' cannot be loaded"):
        spacy_nouns("en_core_web_lg")

    def tag(title: str) -> list[SimpleNamespace]:
        kinds = {"Acme": "PROPN", "red": "ADJ", "Shoes": "NOUN"}
        return [SimpleNamespace(text=word, pos_=kinds[word]) for word in title.split()]

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=lambda _: tag))
    assert spacy_nouns("any")("Acme red Shoes") == ["acme", "shoes"]
