"""What every page shows and where its links lead, word by word, in the small shop."""

from pathlib import Path

import pytest

from rollart_hpc.envs.webshop import WebShop
from rollart_hpc.envs.webshop.catalogue import Product
from rollart_hpc.envs.webshop.webshop import HOW_TO_ACT
from tests.unit.envs.webshop.small_shop import HEAD, ITEM, MUGS, RUNNER, TO_RUNNER, open_shop

RESULTS = (
    f"{HEAD}Back to Search [SEP] Page 1 (Total results: 2) [SEP] B000RUNNER [SEP] Acme Runner Shoes [SEP] $42.0 "
    "[SEP] B00TRAIL00 [SEP] Bolt Trail Shoes [SEP] $55.0 to $70.0"
)
BACK = f"{HEAD}Back to Search [SEP] < Prev [SEP] "


def mugs(numbers: range) -> str:
    return " [SEP] ".join(
        f"{mug.asin} [SEP] {mug.title} [SEP] $5.0" for mug in (MUGS[number - 1] for number in numbers)
    )


def walk(shop: WebShop, actions: list[str]) -> tuple[str, float, bool, bool, dict]:
    observation, info = shop.reset(seed=0, task={})
    last = observation, 0.0, False, False, info
    for action in actions:
        last = shop.step(action)
    return last


PAGES = {
    "results": (["search[shoes]"], RESULTS),
    "results of words in other forms": (["search[The SHOE, please]"], RESULTS),
    "no results": (["search[submarine]"], f"{HEAD}Back to Search [SEP] Page 1 (Total results: 0)"),
    "first of three": (
        ["search[mug]"],
        f"{HEAD}Back to Search [SEP] Page 1 (Total results: 23) [SEP] Next > [SEP] {mugs(range(1, 11))}",
    ),
    "second": (
        ["search[mug]", "click[Next >]"],
        f"{HEAD}Back to Search [SEP] Page 2 (Total results: 23) [SEP] < Prev [SEP] Next > [SEP] {mugs(range(11, 21))}",
    ),
    "third": (
        ["search[mug]", "click[next >]", "click[next >]"],
        f"{HEAD}Back to Search [SEP] Page 3 (Total results: 23) [SEP] < Prev [SEP] {mugs(range(21, 24))}",
    ),
    "back to the second": (
        ["search[mug]", "click[next >]", "click[next >]", "click[< prev]"],
        f"{HEAD}Back to Search [SEP] Page 2 (Total results: 23) [SEP] < Prev [SEP] Next > [SEP] {mugs(range(11, 21))}",
    ),
    "from an item to its page of results": (
        ["search[mug]", "click[next >]", "click[B0000MUG12]", "click[< prev]"],
        f"{HEAD}Back to Search [SEP] Page 2 (Total results: 23) [SEP] < Prev [SEP] Next > [SEP] {mugs(range(11, 21))}",
    ),
    "item": (TO_RUNNER, ITEM),
    "item with a value chosen looks the same": ([*TO_RUNNER, "click[black]"], ITEM),
    "description": ([*TO_RUNNER, "click[Description]"], f"{BACK}A quick drying shoe."),
    "features": ([*TO_RUNNER, "click[Features]"], f"{BACK}Rubber [SEP] Sole with grip"),
    "reviews": ([*TO_RUNNER, "click[Reviews]"], f'{BACK}"Good" [SEP] 5.0 [SEP] Fits.'),
    "back from a detail": ([*TO_RUNNER, "click[reviews]", "click[< prev]"], ITEM),
    "no description": (["search[mug]", "click[b0000mug01]", "click[description]"], f"{BACK}No Description"),
    "no features": (["search[mug]", "click[b0000mug01]", "click[features]"], f"{BACK}No Features"),
    "no reviews": (["search[mug]", "click[b0000mug01]", "click[reviews]"], f"{BACK}No reviews found"),
    "back to search": ([*TO_RUNNER, "click[back to search]"], f"WebShop [SEP] {HEAD}Search"),
    "back to search from a detail": (
        [*TO_RUNNER, "click[features]", "click[back to search]"],
        f"WebShop [SEP] {HEAD}Search",
    ),
    "a search from an item": ([*TO_RUNNER, "search[shoes]"], RESULTS),
}


@pytest.mark.parametrize(("actions", "text"), PAGES.values(), ids=PAGES.keys())
def test_a_page_shows_what_the_rules_say(shop: WebShop, actions: list[str], text: str):
    observation, reward, terminated, truncated, info = walk(shop, actions)
    assert (observation, reward, terminated, truncated) == (text, 0.0, False, False)
    assert info["invalid_turns"] == 0


def test_the_first_page_says_how_to_act_and_what_to_buy(tmp_path: Path, shop: WebShop):
    assert shop.reset(seed=0, task={})[0] == f"{HOW_TO_ACT}WebShop [SEP] {HEAD}Search"
    terse = open_shop(tmp_path, instructions="Go. ")
    assert terse.reset(seed=0, task={})[0] == f"Go. WebShop [SEP] {HEAD}Search"


@pytest.mark.parametrize(
    ("actions", "clickables"),
    [
        (["search[shoes]"], ["back to search", "b000runner", "b00trail00"]),
        (
            TO_RUNNER,
            [
                *("back to search", "< prev", "description", "features", "reviews", "buy now"),
                *("black", "navy blue", "9", "10", "11"),
            ],
        ),
        ([*TO_RUNNER, "click[features]"], ["back to search", "< prev"]),
        ([*TO_RUNNER, "click[buy now]"], []),
    ],
    ids=["results", "item", "detail", "done"],
)
def test_the_available_actions_are_those_of_the_page(shop: WebShop, actions: list[str], clickables: list[str]):
    assert walk(shop, actions)[4]["available_actions"] == [f"click[{text}]" for text in clickables]


def test_a_search_for_the_instruction_is_available_on_the_search_page(shop: WebShop):
    (action,) = walk(shop, [])[4]["available_actions"]
    assert shop.step(action)[0].startswith(f"{HEAD}Back to Search [SEP] Page 1 (Total results: 3)")


PURCHASES = {
    # the goal: non slip, black, 9, at most 50: (attributes + options + price) / 4
    "all chosen": ([*TO_RUNNER, "click[black]", "click[9]"], 4 / 4),
    "nothing chosen": (TO_RUNNER, 2 / 4),
    "one chosen": ([*TO_RUNNER, "click[9]"], 3 / 4),
    "a later value replaces an earlier": ([*TO_RUNNER, "click[black]", "click[9]", "click[10]"], 3 / 4),
    "and back": ([*TO_RUNNER, "click[10]", "click[black]", "click[9]"], 4 / 4),
    "details keep the choice": (
        [*TO_RUNNER, "click[black]", "click[features]", "click[< prev]", "click[9]"],
        4 / 4,
    ),
    "a wrong click keeps the choice": ([*TO_RUNNER, "click[black]", "click[red]", "hm", "click[9]"], 4 / 4),
    "results lose it": ([*TO_RUNNER, "click[black]", "click[9]", "click[< prev]", "click[b000runner]"], 2 / 4),
    "a search loses it": ([*TO_RUNNER, "click[black]", "click[9]", *TO_RUNNER], 2 / 4),
    "the search page loses it": ([*TO_RUNNER, "click[black]", "click[back to search]", *TO_RUNNER], 2 / 4),
    "other shoes, too dear": (["search[trail]", "click[b00trail00]", "click[9]"], 2 / 4),
    "a lamp for shoes": (["search[lamp]", "click[b00000lamp]"], 0.0),
}


@pytest.mark.parametrize(("actions", "score"), PURCHASES.values(), ids=PURCHASES.keys())
def test_buy_now_pays_what_the_rules_give_on_paper(shop: WebShop, actions: list[str], score: float):
    assert walk(shop, actions)[1] == 0.0
    observation, reward, terminated, truncated, info = shop.step("click[Buy Now]")
    thanks = f"Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] {score}"
    assert (observation, reward, terminated, truncated) == (thanks, score, True, False)
    assert (info["bought"], info["score"], info["success"]) == (True, score, score == 1.0)


def test_a_purchase_pays_once(shop: WebShop):
    bought = walk(shop, [*TO_RUNNER, "click[black]", "click[9]", "click[buy now]"])
    for action in ["click[buy now]", "search[shoes]", "click[< prev]"]:
        again = shop.step(action)
        assert again[:4] == (bought[0], 0.0, True, False)
        assert again[4]["score"] == 1.0


BOGUS = {
    "buy on the search page": ([], "click[buy now]"),
    "buy on the results": (["search[shoes]"], "click[buy now]"),
    "buy on a detail": ([*TO_RUNNER, "click[features]"], "click[buy now]"),
    "the search button": ([], "click[search]"),
    "a product that is not there": (["search[shoes]"], "click[b00000lamp]"),
    "a product on the search page": ([], "click[b000runner]"),
    "a product of another page": (["search[mug]"], "click[b0000mug11]"),
    "before the first page": (["search[mug]"], "click[< prev]"),
    "after the last page": (["search[shoes]"], "click[next >]"),
    "another product's value": (TO_RUNNER, "click[red]"),
    "the name of a choice": (TO_RUNNER, "click[color]"),
    "the title": (TO_RUNNER, "click[acme runner shoes]"),
    "half a value": (TO_RUNNER, "click[navy]"),
    "attributes, which no page offers": (TO_RUNNER, "click[attributes]"),
    "empty": (TO_RUNNER, ""),
    "empty brackets": (TO_RUNNER, "click[]"),
    "blank brackets": (TO_RUNNER, "search[ \n\t]"),
    "no verb": (TO_RUNNER, "buy[now]"),
    "no bracket": (TO_RUNNER, "click buy now"),
    "never closed": (TO_RUNNER, "click[buy now"),
    "another word": (TO_RUNNER, "doubleclick[buy now]"),
    "a claim": (TO_RUNNER, '{"score": 1.0, "success": true} Your score (min 0.0, max 1.0) [SEP] 1.0'),
    "broken Unicode": (TO_RUNNER, "click[\ud800]"),
    "full-width letters": (TO_RUNNER, "click[\uff42\uff55\uff59 now]"),
    "a letter that changes its length": (TO_RUNNER, "click[\u0130]"),
    "huge": (TO_RUNNER, "click[" * 200_000),
    "huge and closed": (TO_RUNNER, "click[" + "x" * 1_000_000 + "]"),
    "huge brackets": (TO_RUNNER, "[" * 500_000 + "]" * 500_000),
}


@pytest.mark.parametrize(("actions", "action"), BOGUS.values(), ids=BOGUS.keys())
def test_what_the_page_does_not_offer_costs_the_turn_and_changes_nothing(
    shop: WebShop, actions: list[str], action: str
):
    before = walk(shop, actions)
    page = before[0].removeprefix(HOW_TO_ACT)
    after = shop.step(action)
    assert after[:4] == (page, 0.0, False, False)
    assert after[4] == before[4] | {"turns": len(actions) + 1, "invalid_turns": 1}


def test_a_huge_search_is_a_search(shop: WebShop):
    text = walk(shop, ["search[" + "shoes \ud800 " * 300 + "]"])[0]
    assert "Total results: 2" in text


def test_where_texts_collide_buttons_go_first_and_the_later_choice_wins(tmp_path: Path):
    options = {"size": ("buy now", "small"), "cup": ("small", "Big  [One]")}
    odd = Product(asin="B00000000X", title="Odd Thing", price=1.0, price_tag="$1.0", options=options)
    shop = open_shop(tmp_path, products=(RUNNER, odd))
    walk(shop, ["search[odd]", "click[b00000000x]", "click[small]"])
    assert shop.step("click[big [one]]")[4]["invalid_turns"] == 0
    shop.step("click[small]")
    *_, terminated, _, info = shop.step("click[buy now]")
    assert terminated
    assert info["chosen"] == {"cup": "small"}
