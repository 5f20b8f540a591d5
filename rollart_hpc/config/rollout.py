"""The section ``[rollout]`` of a run's config."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from rollart_hpc.config.modes import (
    SETTINGS,
    Interaction,
    Mode,
    Overlap,
    Schedule,
    Scoring,
    Stale,
    WeightTransfer,
    schedule_of,
)
from rollart_hpc.config.section import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section


class RolloutSection(Section):
    """How trajectories are admitted, bounded and cut off (paper section 6).

    ``mode`` and the six keys behind it are the `Schedule`; what is absent is as the mode has it.
    """

    mode: Mode = "rollart"
    alpha: NonNegativeInt | None = None
    """Staleness bound: a trajectory trained at version n was started by version n - alpha or later."""
    interaction: Interaction | None = None
    scoring: Scoring | None = None
    overlap: Overlap | None = None
    stale: Stale | None = None
    weight_transfer: WeightTransfer | None = None
    groups_per_step: PositiveInt
    """Groups of one training batch, shared among the tasks by weight."""
    trajectories_per_worker: PositiveInt = 512
    """Slots of one environment worker."""
    generate_timeout_s: PositiveFloat = 120.0
    """One turn's generation, suspensions included; after it another generation worker is tried."""
    trajectory_timeout_s: PositiveFloat = 600.0
    """A whole trajectory, from its ticket to its score."""
    deadlines: Literal["fixed", "measured"] = "fixed"
    """``measured`` lowers the deadlines of turns and trajectories to what the task's own distribution calls late; the
    configured ones stay the upper bound."""
    reward_timeout_s: PositiveFloat = 30.0
    stall_timeout_s: PositiveFloat = 1800.0
    """The run ends with a report when no trajectory came back for so long."""
    max_refills: NonNegativeInt = 3
    """How often each place of a group may be filled again after a failure before the whole group is given up
    and its seed poisoned."""
    last_call: NonNegativeFloat = 2.5
    """How many times the usual time of a group a complete batch waits, at most, for groups that would be stale after
    it; 0: batches wait for nobody."""
    buffer_mb: PositiveInt = 1024
    """Bytes that finished, untrained trajectories may hold; no group is opened above it."""

    @model_validator(mode="after")
    def _settings_agree(self) -> RolloutSection:
        _ = self.schedule
        return self

    @property
    def schedule(self) -> Schedule:
        """The mode with what was given beside it."""
        given = {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}
        return schedule_of(self.mode, given)
