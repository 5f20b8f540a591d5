"""LastCall: how long a batch waits for a group that would be stale after it.

A complete batch may leave behind groups that started with the oldest version that it admits. They are too old for the
next batch: whatever they played is thrown away and played again from the start, for which a later batch waits. So the
batch waits for them instead, as long as they take no longer than groups of their task usually do.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

_WINDOW = 64
"""Groups that count, the newest."""


class LastCall:
    """What groups of one task take from their opening to their last member.

    Args:
        patience: how many times the usual time of a group it is waited for; 0 for never.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._taken_s: deque[float] = deque(maxlen=_WINDOW)

    def completed(self, taken_s: float) -> None:
        """Counts a complete group."""
        self._taken_s.append(taken_s)

    def patience_s(self, age_s: float, *, is_continued: bool = False) -> float:
        """How much longer to wait for a group that was opened ``age_s`` ago; 0 where none says what is usual.

        Without end for one of an earlier attempt: behind a resume, what was half played begins together with what is
        new and would be overtaken by it.
        """
        if is_continued and self._patience:
            return math.inf
        if not self._taken_s:
            return 0.0
        return max(0.0, self._patience * median(self._taken_s) - age_s)
