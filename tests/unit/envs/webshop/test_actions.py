import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.envs.webshop.actions import Action, parse_action


def read(text: str) -> str | None:
    action = parse_action(text)
    return f"{action.verb}[{action.argument}]" if action else None


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("search[red shoes]", "search[red shoes]"),
        ("Thought: I search first.\nAction: search[red shoes]", "search[red shoes]"),
        ("<think>click[buy now]? No.</think> search[lamp]", "search[lamp]"),
        ("search[lamp], then click[Buy Now]. Done", "click[buy now]"),
        ("CLICK[ Buy\n  Now ]", "click[buy now]"),
        ("click[size [us] 9]", "click[size [us] 9]"),
        ("search[click[buy now]]", "search[click[buy now]]"),
        ("click[buy now] and click[then", "click[buy now]"),
        ("[1] ]] [click[9]", "click[9]"),
        ("research[cats]", None),
        ("click [9]", None),
        ("click[]", None),
        ("search", None),
        ("", None),
    ],
)
def test_the_last_complete_action_of_a_text_is_read(text: str, action: str | None):
    assert read(text) == action


def test_an_action_is_looked_for_at_the_end_of_a_long_text():
    thoughts = "I wonder what to click[9] next. " * 5_000
    assert read(f"{thoughts} search[lamp]") == "search[lamp]"
    assert read(f"search[lamp] {'hm ' * 5_000}") is None


@given(st.one_of(st.text(), st.lists(st.sampled_from(["click[", "search[", "[", "]", "a", " "])).map("".join)))
def test_any_text_reads_as_an_action_or_none(text: str):
    action = parse_action(text)
    assert action is None or action.argument == " ".join(action.argument.split()) != ""
    assert parse_action(f"{text} click[ok]") == Action(verb="click", argument="ok") or "[" in text


def test_reading_takes_no_longer_for_a_text_that_is_made_to_take_long():
    begin = time.perf_counter()
    for text in ["click[" * 500_000, "[" * 2_000_000, "click[]" * 400_000, "a" * 3_000_000]:
        parse_action(text)
    assert time.perf_counter() - begin < 1.0
