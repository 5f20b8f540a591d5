"""AutoRedundancy: how many members of a group to start beyond its size (paper section 6.3, redundant rollouts).

From what the last trajectories of a task took and how many of them failed, groups are drawn again with 0, 1, 2, ...
members more. A further member shortens the wait for the group's last one and takes a slot until it is cut; it is worth
it when the product of both falls by `_MIN_GAIN`: the time of the slowest of the groups that a batch waits for, and the
slot time of a group. So a long tail or failures bring members, durations that are all alike bring none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MIN_GAIN = 0.03
_WINDOW = 256
"""Attempts that count, the newest."""
_MIN_ATTEMPTS = 32
_RENEW_AFTER = 16
"""Attempts between two choices."""
_NUM_DRAWS = 400
_MOST_TRIES = 5
"""Drawn for one place: beyond it the place counts as filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayAttempt:
    """What one trajectory took, from its ticket to its return, and whether its place has to be filled again."""

    duration_s: float
    has_failed: bool


class AutoRedundancy:
    """The choice for one task; it follows its observations, the same for the same ones."""

    def __init__(self, *, group_size: int, most: int, groups_per_batch: float) -> None:
        """``most`` is the budget, in members; ``groups_per_batch`` those of the task in a batch, on average."""
        self._group_size, self._most, self._groups_per_batch = group_size, most, groups_per_batch
        self._attempts: deque[PlayAttempt] = deque(maxlen=_WINDOW)
        self._num_new = 0
        self.members = 0
        """Beyond the group's size."""

    def observe(self, attempt: PlayAttempt) -> None:
        """Counts a trajectory that nobody would have cut, however long it took."""
        self._attempts.append(attempt)
        self._num_new += 1
        if len(self._attempts) >= _MIN_ATTEMPTS and self._num_new >= _RENEW_AFTER:
            self._num_new = 0
            self.members = redundant_members(
                self._attempts,
                group_size=self._group_size,
                most=self._most,
                groups_per_batch=self._groups_per_batch,
            )


def redundant_members(attempts: Sequence[PlayAttempt], *, group_size: int, most: int, groups_per_batch: float) -> int:
    """Members beyond ``group_size`` that pay, at most ``most``, for places whose attempts are like ``attempts``."""
    filled_s = _filled_s(attempts, group_size + most)
    cost = _cost(filled_s[:, :group_size], group_size, groups_per_batch)
    for members in range(most):
        next_cost = _cost(filled_s[:, : group_size + members + 1], group_size, groups_per_batch)
        if next_cost >= (1 - _MIN_GAIN) * cost:
            return members
        cost = next_cost
    return most


def _filled_s(attempts: Sequence[PlayAttempt], num_places: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """[draws, places] seconds until a place is filled: failed attempts first, each of which takes its time."""
    durations = np.asarray([attempt.duration_s for attempt in attempts])
    failures = np.asarray([attempt.has_failed for attempt in attempts])
    random = np.random.default_rng(0)
    total_s = np.zeros((_NUM_DRAWS, num_places))
    is_open = np.ones((_NUM_DRAWS, num_places), np.bool_)
    for _ in range(_MOST_TRIES):
        drawn = random.integers(len(attempts), size=total_s.shape)
        total_s += is_open * durations[drawn]
        is_open &= failures[drawn]
    return total_s


def _cost(
    filled_s: np.ndarray[tuple[int, int], np.dtype[np.float64]], group_size: int, groups_per_batch: float
) -> float:
    """Mean seconds until a batch's groups have ``group_size`` places filled, times mean slot seconds of a group."""
    group_s = np.partition(filled_s, group_size - 1, axis=1)[:, group_size - 1]
    slot_s = np.minimum(filled_s, group_s[:, None]).sum(axis=1)
    # The mean of the largest of so many draws: each rank's share of being the largest.
    ranks = (np.arange(len(group_s) + 1) / len(group_s)) ** max(1.0, groups_per_batch)
    return float(np.sort(group_s) @ np.diff(ranks) * slot_s.mean())
