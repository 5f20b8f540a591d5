"""Each case is worked out on paper: type * (attributes met + options met + price met) / (their number + 1)."""

from typing import Any

import msgspec
import pytest

from rollart_hpc.envs.webshop.catalogue import Goal, Product
from rollart_hpc.envs.webshop.reward_rules import score_purchase
from tests.unit.envs.webshop.small_shop import LAMP, RUNNER, TRAIL, category

TEN = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
TWELVE = (*TEN, "eleven", "twelve")
ELSEWHERE = category("Clothing", "Hats")
CASES: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any], float]] = {
    # attributes: the runner's own are "non slip" and "memory foam"; price met, so (met + 1) / (asked + 1)
    "both attributes": ({"attributes": ("non slip", "memory foam")}, {}, {}, 3 / 3),
    "one of two": ({"attributes": ("non slip", "steel toe")}, {}, {}, 2 / 3),
    "none of one": ({"attributes": ("steel toe",)}, {}, {}, 1 / 2),
    "no attribute asked": ({"attributes": ()}, {}, {}, 1 / 1),
    "words in another order": ({"attributes": ("foam memory",)}, {}, {}, 2 / 2),
    "punctuation and case": ({"attributes": ("Non-Slip!",)}, {}, {}, 2 / 2),
    "a word of an own attribute": ({"attributes": ("foam",)}, {}, {}, 2 / 2),
    "a word more than an own one": ({"attributes": ("soft memory foam",)}, {}, {}, 2 / 2),
    "a plural, 22 of 23 letters": ({"attributes": ("memory foams",)}, {}, {}, 2 / 2),
    "in the title": ({"attributes": ("acme run",)}, {}, {}, 2 / 2),
    "in the description": ({"attributes": ("quick drying",)}, {}, {}, 2 / 2),
    "across two features": ({"attributes": ("rubber sole",)}, {}, {}, 2 / 2),
    "texts hold no capitals": ({"attributes": ("Quick Drying",)}, {}, {}, 1 / 2),
    # 2 * 29 letters in common of 34 + 34 are 85.3 percent, which is 85; 2 * 6 of 7 + 7 are 85.7, which is 86
    "85.3 percent alike": ({"attributes": ("x" * 29 + "y" * 5,)}, {}, {"attributes": ("x" * 29 + "z" * 5,)}, 1 / 2),
    "85.7 percent alike": ({"attributes": ("xxxxxxy",)}, {}, {"attributes": ("xxxxxxz",)}, 2 / 2),
    # options, with one attribute that is met: (1 + met + 1) / (asked + 2)
    "the option": ({"options": ("9",)}, {"size": "9"}, {}, 3 / 3),
    "not chosen": ({"options": ("9",)}, {}, {}, 2 / 3),
    "another chosen": ({"options": ("9",)}, {"size": "10"}, {}, 2 / 3),
    "half a size, which holds the word 9": ({"options": ("9",)}, {"size": "9.5"}, {}, 3 / 3),
    "one of two options": ({"options": ("black", "9")}, {"color": "black"}, {}, 3 / 4),
    "both options": ({"options": ("black", "9")}, {"color": "black", "size": "9"}, {}, 4 / 4),
    "under another choice": ({"options": ("9",)}, {"color": "9"}, {}, 3 / 3),
    "more than asked": ({"options": ()}, {"color": "black", "size": "9"}, {}, 2 / 2),
    "one value, two wishes": ({"options": ("black", "jet black")}, {"color": "black"}, {}, 4 / 4),
    "blue before navy": ({"options": ("navy blue",)}, {"color": "sky blue"}, {}, 3 / 3),
    "dark before red": ({"options": ("dark red",)}, {"color": "dark green"}, {}, 3 / 3),
    "a colour inside a word": ({"options": ("red",)}, {"color": "shredded"}, {}, 3 / 3),
    "two colours": ({"options": ("black",)}, {"color": "navy"}, {}, 2 / 3),
    "a value that is only in the title": ({"options": ("acme",)}, {}, {}, 2 / 3),
    # price
    "at the limit": ({}, {}, {"price": 50.0}, 2 / 2),
    "a cent above": ({}, {}, {"price": 50.01}, 1 / 2),
    "no limit": ({"price_limit": None}, {}, {"price": 9000.0}, 2 / 2),
    # type, all else met
    "no noun, the same query": ({}, {}, {"nouns": ("sofa",)}, 0.0),
    "1 of 12 nouns, the same query": ({"nouns": TWELVE}, {}, {"nouns": ("one",)}, 0.1),
    "1 of 10 nouns, the same query": ({"nouns": TEN}, {}, {"nouns": ("one",)}, 1.0),
    "1 of 10 nouns, two levels": ({"nouns": TEN}, {}, {"nouns": ("one",), "query": "x"}, 1.0),
    "2 of 10 nouns, one level": (
        {"nouns": TEN},
        {},
        {"nouns": ("one", "two"), "query": "x", "product_category": ELSEWHERE},
        0.5,
    ),
    "3 of 10 nouns, one level": (
        {"nouns": TEN},
        {},
        {"nouns": ("one", "two", "three"), "query": "x", "product_category": ELSEWHERE},
        1.0,
    ),
    "one level twice": (
        {"nouns": TEN},
        {},
        {"nouns": ("one",), "query": "x", "product_category": category("Clothing", "Clothing")},
        0.5,
    ),
    "1 of 12 nouns, counted with repetitions": ({"nouns": ("one",) * 2 + TEN}, {}, {"nouns": ("one",)}, 0.1),
    "no nouns to compare": ({"nouns": ()}, {}, {"query": "x", "product_category": ELSEWHERE}, 0.5),
    # all together: half the type, one attribute of two, no option of one, too dear: 0.5 * (1 + 0 + 0) / 4
    "all together": (
        {"nouns": TEN, "attributes": ("non slip", "steel toe"), "options": ("9",)},
        {"size": "10"},
        {"nouns": ("one", "two"), "query": "x", "product_category": ELSEWHERE, "price": 51.0},
        0.125,
    ),
}


def scored(goal: dict[str, Any], chosen: dict[str, str], bought: Product) -> Any:
    goal = dict(goal)
    nouns = goal.pop("nouns", RUNNER.nouns)
    wish = Goal(**{"asin": "W", "instruction": "i", "attributes": ("non slip",), "price_limit": 50.0} | goal)
    wanted = msgspec.structs.replace(RUNNER, nouns=nouns)
    return score_purchase(bought=bought, chosen=chosen, goal=wish, wanted=wanted)


@pytest.mark.parametrize(("goal", "chosen", "bought", "score"), CASES.values(), ids=CASES.keys())
def test_a_purchase_has_the_score_that_the_rules_give_on_paper(
    goal: dict[str, Any], chosen: dict[str, str], bought: dict[str, Any], score: float
):
    product = msgspec.structs.replace(RUNNER, **({"nouns": goal["nouns"]} if "nouns" in goal else {}) | bought)
    assert scored(goal, chosen, product).score == pytest.approx(score, abs=1e-12)


def test_the_parts_of_a_score_are_told():
    # trail shoes: 1 of 3 nouns; "memory foam" is missing; no colour is alike; 61.50 is above 50
    wish = {"attributes": ("non slip", "memory foam"), "options": ("black", "9")}
    parts = scored(wish, {"color": "olive green", "size": "9"}, TRAIL)
    assert (parts.r_type, parts.r_att, parts.r_option, parts.r_price) == (1.0, 1 / 2, 1 / 2, 0.0)
    assert (parts.score, parts.title_score) == (2 / 5, 1 / 3)
    none_asked = scored({"attributes": ()}, {}, LAMP)
    assert (none_asked.r_att, none_asked.r_option, none_asked.score) == (None, None, 0.0)


def test_the_whole_score_is_exactly_one():
    for size in range(1, 40):
        assert (
            scored({"attributes": ("non slip",) * size, "options": ("9",) * size}, {"size": "9"}, RUNNER).score == 1.0
        )
