"""When a run that fails again and again is given up."""

import pytest

from rollart_hpc.launcher.attempt_log import AttemptRecord
from rollart_hpc.launcher.failure_budget import failures_in_a_row, kind_of, pause_s, why_given_up


def record(event: str = "failed", cause: str = "boom", *, step: int = 0, by_user: bool = False) -> AttemptRecord:
    return AttemptRecord(attempt=1, event=event, at=0.0, cause=cause, step=step, by_user=by_user)


def test_failures_of_one_kind_end_the_run_when_they_are_too_many():
    assert why_given_up([record()] * 2, 3) == ""
    assert why_given_up([record()] * 3, 3) == "3 attempts in a row failed the same way without a new step"


def test_failures_of_several_kinds_have_twice_the_budget():
    mixed = [record(cause=kind) for kind in ("a", "b", "a", "b", "a", "b")]
    assert why_given_up(mixed[:5], 3) == ""
    assert why_given_up(mixed, 3) == "6 attempts in a row failed without a new step"


def test_failures_of_one_kind_count_only_in_a_row():
    assert why_given_up([record(cause="a"), record(cause="b"), record(cause="a"), record(cause="a")], 3) == ""


def test_a_new_step_begins_a_new_row():
    assert failures_in_a_row([record(step=4), record(step=4), record(step=5)]) == [record(step=5)]
    assert why_given_up([record(step=step) for step in range(20)], 3) == ""


def test_steps_that_are_trained_again_are_no_new_ones():
    assert len(failures_in_a_row([record(step=9), record(step=7), record(step=9)])) == 3


@pytest.mark.parametrize("event", ["started", "stopped", "done", "noticed", "first_step"])
def test_what_is_no_failure_neither_counts_nor_begins_a_new_row(event: str):
    assert len(failures_in_a_row([record(), record(event), record()])) == 2


def test_the_user_begins_a_new_row():
    assert len(failures_in_a_row([record(), record(), record("started", by_user=True), record()])) == 1


def test_a_run_without_failures_goes_on():
    assert why_given_up([record("started")], 1) == ""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("actor_train-0 ended with exit code 1: no /a/b.txt", "actor_train-1 ended with exit code 1: no /c/d.txt"),
        ("no bus at nats://10.0.0.1:4222: gone", "no bus at nats://10.0.0.27:39111: gone"),
        ("<Thing object at 0x7f9c156b36d0>", "<Thing object at 0x55aa10>"),
        ("message 4f3a9b20ffee1122 lost", "message 00aa9b20ffee1100 lost"),
    ],
    ids=["paths and ranks", "addresses", "objects", "ids"],
)
def test_causes_are_alike_but_for_what_changes_from_time_to_time(first: str, second: str):
    assert kind_of(first) == kind_of(second)


def test_causes_with_other_words_are_not_alike():
    assert kind_of("actor_train-0 ended with killed by SIGKILL") != kind_of(
        "actor_train-0 ended with killed by SIGABRT"
    )


def test_the_pause_grows_from_the_second_failure_on_and_has_a_bound():
    assert [pause_s(number) for number in (0, 1, 2, 3, 4)] == [0, 0, 2, 4, 8]
    assert pause_s(50) == 60
