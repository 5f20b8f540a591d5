"""Python's garbage collector in processes that live long and hold much: `hold` at their start, then `settle`.

A collection walks through all that a process holds, modules and models among it, and finds nothing. It costs a fifth of
a worker's start, and would cost half of a turn where thousands of trajectories are played.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (50_000, 20, 50)


def hold() -> None:
    """No collection from now on: what is made while a process starts, stays."""
    gc.disable()


def keep() -> None:
    """What there is by now stays: a library that collects by itself while it starts need not look at it."""
    gc.freeze()


def settle() -> None:
    """The start is over. From now on collections come, seldom, and do not look at what there was before."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
