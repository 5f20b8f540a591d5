"""When a run that fails again and again is given up: counted over the whole run, from RUN/attempts.jsonl.

Failures in a row are those that got no step further than the first of them did. Stops, preemptions and lost leaders
neither count nor begin a new row; an attempt that the user began does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from rollart_hpc.launcher.attempt_log import AttemptRecord

_CHANGING = re.compile(r"(?:/[^\s:,;'\")]+)+|0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")
"""Paths, addresses, ids and numbers."""
_PAUSE_S, _MAX_PAUSE_S = 2.0, 60.0


def failures_in_a_row(records: Sequence[AttemptRecord]) -> list[AttemptRecord]:
    """The newest failures without a new trained step in between, oldest first."""
    row: list[AttemptRecord] = []
    furthest = 0
    for record in records:
        if record.by_user:
            row.clear()
        if record.event == "failed":
            if record.step > furthest:
                row.clear()
            furthest = max(furthest, record.step)
            row.append(record)
    return row


def why_given_up(records: Sequence[AttemptRecord], max_failures: int) -> str:
    """Why there is no further attempt after the newest failure, in words; empty while there may be one."""
    row = failures_in_a_row(records)
    if not row:
        return ""
    kind = kind_of(row[-1].cause)
    alike = len(list(itertools.takewhile(lambda one: kind_of(one.cause) == kind, reversed(row))))
    if alike >= max_failures:
        return f"{alike} attempts in a row failed the same way without a new step"
    if len(row) >= 2 * max_failures:
        return f"{len(row)} attempts in a row failed without a new step"
    return ""


def kind_of(cause: str) -> str:
    """A cause without what differs from time to time."""
    return _CHANGING.sub("#", cause)


def pause_s(num_failures: int) -> float:
    """What is waited after so many failures in a row: nothing after the first."""
    return min(_PAUSE_S * 2 ** (num_failures - 2), _MAX_PAUSE_S) if num_failures > 1 else 0.0
