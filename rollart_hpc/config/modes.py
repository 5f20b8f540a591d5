"""Modes: how rollout and training take turns (paper sections 2.2, 6.2 and 7). One loop runs all of them.

A mode is a `Schedule`, six settings of the loop. The systems that the paper compares with are schedules whose settings
are fixed; ``rollart`` is the one from which a user composes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

Mode = Literal["sync", "sync_plus", "one_off", "areal", "rollart"]
Interaction = Literal["trajectory", "batched"]
Scoring = Literal["trajectory", "batched"]
Overlap = Literal["none", "step", "continuous"]
Stale = Literal["abort", "train"]
WeightTransfer = Literal["background", "blocking"]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop goes by."""

    alpha: int
    """Staleness bound, in versions."""
    interaction: Interaction
    """``trajectory``: each environment goes at its own pace. ``batched``: those of one environment worker take their
    turns together; the fast ones wait for the slowest before the next generation and before the next step."""
    scoring: Scoring
    """``trajectory``: a reward is asked for when its episode ends. ``batched``: when all episodes of the environment
    worker have ended."""
    overlap: Overlap
    """``none``: nothing is played while a batch is trained. ``step``: the next batch is played while one is trained,
    whole and by one version, and new weights are loaded between two batches. ``continuous``: trajectories start
    whenever the bound admits them, and new weights are loaded in the middle of them."""
    stale: Stale
    """What becomes of a trajectory that is older than the bound: it is aborted, or trained all the same, so that only
    admission bounds staleness."""
    weight_transfer: WeightTransfer
    """``background``: weights are sent and fetched while training and generation go on, which stop for the load alone.
    ``blocking``: training and generation wait for the transfer, too."""


MODES: Mapping[Mode, Schedule] = MappingProxyType(
    {
        "sync": Schedule(
            alpha=0,
            interaction="batched",
            scoring="batched",
            overlap="none",
            stale="abort",
            weight_transfer="blocking",
        ),
        "sync_plus": Schedule(
            alpha=0,
            interaction="trajectory",
            scoring="trajectory",
            overlap="none",
            stale="abort",
            weight_transfer="blocking",
        ),
        "one_off": Schedule(
            alpha=1,
            interaction="trajectory",
            scoring="trajectory",
            overlap="step",
            stale="abort",
            weight_transfer="blocking",
        ),
        "areal": Schedule(
            alpha=1,
            interaction="trajectory",
            scoring="trajectory",
            overlap="continuous",
            stale="train",
            weight_transfer="blocking",
        ),
        "rollart": Schedule(
            alpha=1,
            interaction="trajectory",
            scoring="trajectory",
            overlap="continuous",
            stale="abort",
            weight_transfer="background",
        ),
    }
)
SETTINGS = Schedule.__struct_fields__
_FREE: Mapping[Mode, tuple[str, ...]] = MappingProxyType({"areal": ("alpha",), "rollart": SETTINGS})
"""What a user may set beside each mode; everything else is the mode."""
_ALPHA_OF: Mapping[Overlap, int] = MappingProxyType({"none": 0, "step": 1})


def schedule_of(mode: Mode, given: Mapping[str, int | str]) -> Schedule:
    """The schedule of a mode with the settings that a user gave.

    Raises:
        ValueError: they contradict the mode or each other; the text says what to change.
    """
    preset = MODES[mode]
    for name, value in given.items():
        if name not in _FREE.get(mode, ()) and value != getattr(preset, name):
            raise ValueError(
                f'mode = "{mode}" means {name} = {getattr(preset, name)!r}, got {value!r}; leave {name} out, or leave '
                "mode out and give the settings that you want"
            )
    if "alpha" not in given and given.get("overlap") in _ALPHA_OF:
        given = {**given, "alpha": _ALPHA_OF[given["overlap"]]}  # pyright: ignore[reportArgumentType]
    schedule = msgspec.structs.replace(preset, **given)
    needed = _ALPHA_OF.get(schedule.overlap, schedule.alpha)
    if schedule.alpha != needed:
        raise ValueError(
            f'overlap = "{schedule.overlap}" means alpha = {needed}, got {schedule.alpha}; leave alpha out, or set '
            'overlap = "continuous"'
        )
    return schedule
