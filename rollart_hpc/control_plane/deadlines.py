"""MeasuredDeadline: when a turn or a trajectory of a task counts as late, from what earlier ones took.

The deadline is twice the observation of rank 0.999 (n + 1) among n. Whatever their distribution is, the next one of
the same exceeds that observation with a probability of at most 1/1000 (it is as likely at each rank), and the factor
leaves room for change. Below 999 observations there is no such rank and no deadline.
"""

from __future__ import annotations

import heapq
from collections import deque

_LATE = 1000
"""One of so many may exceed the observation that the deadline goes by."""
_ROOM = 2.0
_WINDOW = 4 * _LATE - 1
"""Observations that count, the newest; up to three of them may be outliers."""


class MeasuredDeadline:
    """Of one kind of wait of one task."""

    def __init__(self, at_most_s: float) -> None:
        self._at_most_s = at_most_s
        self._observed_s: deque[float] = deque(maxlen=_WINDOW)
        self._deadline_s: float | None = None
        self._is_settled = True

    def observe(self, seconds: float) -> None:
        """Counts one that no measured deadline would have cut, or that was cut after ``seconds`` for other reasons."""
        self._observed_s.append(seconds)
        self._is_settled = False

    @property
    def seconds(self) -> float | None:
        """The deadline, never above the configured one; None while too little is known."""
        if not self._is_settled:
            self._is_settled = True
            num_largest = (len(self._observed_s) + 1) // _LATE
            if num_largest:
                self._deadline_s = min(self._at_most_s, _ROOM * heapq.nlargest(num_largest, self._observed_s)[-1])
        return self._deadline_s
