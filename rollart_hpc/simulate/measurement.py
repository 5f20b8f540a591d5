"""What a run of a scenario says: time per step, where it went, what stood idle, what was aborted."""

from __future__ import annotations

from typing import Any

import msgspec

from rollart_hpc.simulate.emulated_run import EmulatedRun, StepRecord
from rollart_hpc.simulate.scenario import Scenario

_PHASES = ("get_batch", "train_step", "publish", "checkpoint")


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Of the measured steps; all times are simulated seconds."""

    step_s: float
    """Mean time of a step."""
    phase_s: dict[str, float]
    """Mean of what the training loop did or waited for."""
    idle_share: dict[str, float]
    """Share of the time in which a worker of the pool had no work, or could do none; of ``environment``, a slot."""
    stale_share: float
    """Trajectories aborted as stale, over those and the trained ones."""
    trained_share: dict[str, float]
    """Share of the trained groups by task, from the start of the run."""
    trajectory_s: dict[str, dict[str, float]]
    """Mean seconds of a trajectory by task and phase, from the start of the run."""
    staleness_max: int
    """The oldest trained trajectory, in versions."""
    lateness_s: float
    """Mean lateness of the event loop: what the emulation adds to each of a trajectory's waits."""


def measure(run: EmulatedRun, scenario: Scenario) -> Measurement:
    """The figures of a run."""
    scale, warm_up = scenario.emulation.time_scale, scenario.emulation.warm_up_steps
    first, last = run.records[warm_up - 1], run.records[-1]
    steps = run.records[warm_up:]
    span_s = last.at_s - first.at_s
    return Measurement(
        step_s=span_s / len(steps),
        phase_s={phase: _mean(one.metrics["seconds"].get(phase, 0.0) for one in steps) * scale for phase in _PHASES},
        idle_share={
            pool: 1 - (last.busy_s[pool] - first.busy_s[pool]) / (span_s * capacity)
            for pool, capacity in run.capacity.items()
            if capacity
        },
        stale_share=_share_of_stale(first, last),
        trained_share={task: section["share"] for task, section in last.metrics["tasks"].items()},
        trajectory_s={
            task: {phase: seconds * scale for phase, seconds in section["seconds_per_trajectory"].items()}
            for task, section in run.summary["tasks"].items()
        },
        staleness_max=max(one.metrics["staleness_max"] for one in steps),
        lateness_s=run.lateness_s,
    )


def _share_of_stale(first: StepRecord, last: StepRecord) -> float:
    stale, trained = (_ended(last, outcome) - _ended(first, outcome) for outcome in ("stale", "trained"))
    return stale / max(1, stale + trained)


def _ended(record: StepRecord, outcome: str) -> int:
    return int(record.metrics["trajectories"][outcome])


def _mean(values: Any) -> float:
    found = list(values)
    return sum(found) / len(found)
