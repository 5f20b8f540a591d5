"""A chart of one line."""

from __future__ import annotations

from collections.abc import Iterable

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], *, low: float = 0.0, high: float = 1.0) -> str:
    """Values as a line of bars between ``low`` and ``high``."""
    span = max(high - low, 1e-12)
    levels = (int((value - low) / span * len(_BARS)) for value in values)
    return "".join(_BARS[min(len(_BARS) - 1, max(0, level))] for level in levels)
