"""Measured deadlines: when they begin, and that hardly anything normal is late."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from rollart_hpc.control_plane.deadlines import MeasuredDeadline

Draw = Callable[[np.random.Generator, int], np.ndarray]
NUM_HISTORIES = 200


def deadline_of(observed_s: np.ndarray, at_most_s: float = math.inf) -> float | None:
    deadline = MeasuredDeadline(at_most_s)
    for seconds in observed_s:
        deadline.observe(float(seconds))
    return deadline.seconds


def bimodal(slow_share: float) -> tuple[Draw, Callable[[float], float]]:
    def draw(random: np.random.Generator, size: int) -> np.ndarray:
        return np.where(random.random(size) < slow_share, 100.0, 1.0) * random.uniform(0.5, 1.0, size)

    def late(seconds: float) -> float:
        slow = slow_share * np.clip((100 - seconds) / 50, 0, 1)
        return float(slow + (1 - slow_share) * np.clip((1 - seconds) / 0.5, 0, 1))

    return draw, late


@pytest.mark.parametrize("num_observed", [999, 1998, 3999, 6000])
@pytest.mark.parametrize(
    ("draw", "late"),
    [
        pytest.param(
            lambda random, size: random.pareto(1.0, size) + 1, lambda seconds: 1 / max(1.0, seconds), id="Pareto"
        ),
        pytest.param(
            lambda random, size: random.lognormal(0.0, 2.0, size),
            lambda seconds: 0.5 * math.erfc(math.log(seconds) / 2 / math.sqrt(2)),
            id="lognormal",
        ),
        pytest.param(*bimodal(0.3), id="bimodal"),
        pytest.param(*bimodal(0.002), id="a rare slow mode"),
        pytest.param(lambda _, size: np.ones(size), lambda seconds: float(seconds < 1), id="constant"),
    ],
)
def test_less_than_one_in_a_thousand_of_the_same_distribution_is_late(
    num_observed: int, draw: Draw, late: Callable[[float], float]
):
    random, total = np.random.default_rng(num_observed), 0.0
    for _ in range(NUM_HISTORIES):
        deadline_s = deadline_of(draw(random, num_observed))
        assert deadline_s is not None
        total += late(deadline_s)
    assert total / NUM_HISTORIES < 1 / 1000


def test_there_is_no_deadline_before_enough_is_known_and_none_above_the_configured_one():
    assert deadline_of(np.ones(998)) is None
    assert deadline_of(np.ones(999)) == 2.0
    assert deadline_of(np.ones(999), at_most_s=1.5) == 1.5


def test_an_outlier_does_not_set_the_deadline_for_ever():
    observed_s = np.ones(2000)
    observed_s[500] = 60.0
    assert deadline_of(observed_s) == 2.0
