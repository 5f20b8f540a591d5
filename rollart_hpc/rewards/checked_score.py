"""What a user's reward may be: everything else is a fault, never a reward of 0."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from rollart_hpc.bus import codec
from rollart_hpc.errors import RewardFault
from rollart_hpc.types import Score

_MAX_REWARD = 1e30
"""Far below what float32 holds; a NaN fails the comparison too."""


def checked_score(value: object) -> Score:
    """A reward function's result as a score.

    Raises:
        RewardFault: bad_value, for anything but a finite number or a `Score` of finite reward.
    """
    if isinstance(value, int | float | np.integer | np.floating):
        value = Score(reward=_as_float(value))
    if not isinstance(value, Score):
        raise RewardFault("bad_value", f"got {_shown(value)}; expected a finite number or a Score")
    try:
        score = codec.decode(codec.encode(value), Score)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RewardFault("bad_value", f"got a Score whose fields have wrong types or values: {error}") from error
    if not abs(score.reward) <= _MAX_REWARD:
        raise RewardFault("bad_value", f"got {score.reward}; expected a finite number of at most +-{_MAX_REWARD:.0e}")
    return score


def _as_float(value: float | np.integer | np.floating) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: object) -> str:
    """Code of users gives what cannot even say what it is."""
    try:
        return f"{type(value).__name__} {value!r:.80}"
    except Exception:
        return type(value).__name__
