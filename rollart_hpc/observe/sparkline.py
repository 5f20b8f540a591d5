"""A chart of one line."""

from __future__ import annotations

import math
from collections.abc import Iterable

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], *, low: float = 0.0, high: float = 1.0) -> str:
    """Values as a line of bars between ``low`` and ``high``; a gap where one is not finite."""
    span = max(high - low, 1e-12)
    return "".join(_bar((value - low) / span) for value in values)


def _bar(share: float) -> str:
    if not math.isfinite(share):
        return " "
    return _BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))]
