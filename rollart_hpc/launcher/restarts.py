"""How often the processes of an attempt were started again, and when that is too often."""

from __future__ import annotations

import time
from collections import defaultdict

MAX_RESTARTS = 5
_WINDOW_S = 900.0
"""What was started again so often within this time has a fault of its own."""


class Restarts:
    """Of one attempt, by name."""

    def __init__(self) -> None:
        self._times: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str) -> bool:
        """Counts an end; False when it is not to be started again."""
        now = time.monotonic()
        self._times[name].append(now)
        return len([at for at in self._times[name] if at > now - _WINDOW_S]) <= MAX_RESTARTS

    def counts(self) -> dict[str, int]:
        """By name, of all that ended."""
        return {name: len(times) for name, times in self._times.items()}
