"""How many redundant members a task's measured attempts are worth."""

import numpy as np
import pytest

from rollart_hpc.control_plane.redundancy import AutoRedundancy, PlayAttempt, redundant_members

NUM = 256
RANDOM = np.random.default_rng(7)


def attempts(durations_s: np.ndarray, fail_share: float = 0.0) -> list[PlayAttempt]:
    fails = np.random.default_rng(8).random(len(durations_s)) < fail_share
    return [PlayAttempt(duration_s=float(s), has_failed=bool(f)) for s, f in zip(durations_s, fails, strict=True)]


STEADY = attempts(np.full(NUM, 10.0))
LONG_TAIL = attempts(RANDOM.lognormal(2.0, 1.0, NUM))


@pytest.mark.parametrize(
    ("measured", "least", "most"),
    [
        pytest.param(STEADY, 0, 0, id="all alike"),
        pytest.param(attempts(RANDOM.normal(10, 1, NUM)), 0, 0, id="nearly alike"),
        pytest.param(attempts(np.full(NUM, 10.0), 0.1), 1, 2, id="one in ten fails"),
        pytest.param(LONG_TAIL, 4, 4, id="long tail"),
        pytest.param(attempts(np.zeros(NUM)), 0, 0, id="no time at all"),
        pytest.param(attempts(np.full(NUM, 10.0), 1.0), 0, 0, id="all fail"),
    ],
)
def test_a_long_tail_and_failures_are_worth_members(measured: list[PlayAttempt], least: int, most: int):
    assert least <= redundant_members(measured, group_size=8, most=4, groups_per_batch=1) <= most


def test_the_same_history_gives_the_same_choice_within_the_budget():
    for budget in (0, 1, 3):
        chosen = {redundant_members(LONG_TAIL, group_size=8, most=budget, groups_per_batch=1) for _ in range(2)}
        assert chosen == {budget}


def test_nothing_is_started_beyond_the_group_before_enough_is_known_and_the_choice_follows_change():
    auto, chosen = AutoRedundancy(group_size=8, most=4, groups_per_batch=1), list[int]()
    for attempt in (*LONG_TAIL, *STEADY):
        auto.observe(attempt)
        chosen.append(auto.members)
    assert set(chosen[:31]) == {0}
    assert chosen[NUM - 1] == 4
    assert chosen[-1] == 0


def test_the_more_groups_a_batch_waits_for_the_more_their_tails_count():
    moderate = attempts(np.random.default_rng(9).lognormal(2.0, 0.25, NUM))
    alone, together = (redundant_members(moderate, group_size=8, most=4, groups_per_batch=number) for number in (1, 16))
    assert alone < together
