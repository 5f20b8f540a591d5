"""SWE-bench's rules."""

from dataclasses import replace

import pytest

from rollart_hpc.envs.swe.grading.verdict import verdict_of, worst_statuses
from rollart_hpc.envs.swe.instance import Instance, tiny_rows

INSTANCE = replace(Instance.from_row(tiny_rows()[0]), fail_to_pass=("f", "g"), pass_to_pass=("p", "q"))
GOOD = {"f": "PASSED", "g": "PASSED", "p": "PASSED", "q": "PASSED"}


@pytest.mark.parametrize(
    ("change", "resolved"),
    [
        ({}, True),
        ({"f": "XFAIL", "p": "XFAIL"}, True),
        ({"p": "SKIPPED"}, True),
        ({"f": "SKIPPED"}, False),
        ({"f": "FAILED"}, False),
        ({"q": "ERROR"}, False),
        ({"f": None}, False),
        ({"p": None}, False),
    ],
)
def test_all_must_begin_to_pass_and_none_may_cease(change: dict[str, str | None], resolved: bool) -> None:
    statuses = {test: status for test, status in (GOOD | change).items() if status is not None}
    assert verdict_of(statuses, INSTANCE).resolved is resolved


def test_shares_tell_how_far_it_got() -> None:
    verdict = verdict_of(GOOD | {"g": "FAILED"}, INSTANCE)
    assert (verdict.reason, verdict.fail_to_pass, verdict.pass_to_pass) == ("tests_failed", 0.5, 1.0)


def test_a_name_that_is_cut_in_its_parameter_stands_for_those_that_agree() -> None:
    instance = replace(INSTANCE, fail_to_pass=("f[log(a",), pass_to_pass=())
    assert verdict_of({"f[log(a b)]": "PASSED", "f[log(a c)]": "XFAIL"}, instance).resolved
    assert not verdict_of({"f[log(a b)]": "PASSED", "f[log(a c)]": "FAILED"}, instance).resolved
    assert not verdict_of({"f[log(b)]": "PASSED"}, instance).resolved


def test_a_claimed_pass_hides_no_failure() -> None:
    assert worst_statuses([("a", "FAILED"), ("a", "PASSED"), ("b", "PASSED"), ("b", "ERROR")]) == {
        "a": "FAILED",
        "b": "ERROR",
    }
