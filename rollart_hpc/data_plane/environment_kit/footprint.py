"""What an environment costs: memory of an instance, growth by episodes, times of its calls."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from rollart_hpc.data_plane.environment_kit.probe import Probe, Script, Subject
from rollart_hpc.data_plane.environment_kit.report import Figures
from rollart_hpc.errors import EnvironmentFault

_INSTANCES = 8
_EPISODES = 60
_WARM_UP_EPISODES = 20
_BUDGET_S = 5.0


async def measure_footprint(subject: Subject, figures: Figures, scripts: Sequence[Script]) -> None:
    """Fills in the figures; one that cannot be measured, since the environment fails, stays as it is."""
    figures.reset_ms = _percentiles(measured_ms(subject.timings.resets.values()))
    figures.step_ms = _percentiles(measured_ms(subject.timings.steps.values()))
    try:
        async with subject.child() as probe:
            await probe.replay(scripts[0])
            alone = probe.memory_bytes()
            figures.child_mb = round(alone / 1e6, 1)
            for number in range(1, _INSTANCES + 1):
                await probe.replay(scripts[0], number)
            figures.instance_kb = round((probe.memory_bytes() - alone) / _INSTANCES / 1e3, 1)
        async with subject.child() as probe:
            await _episodes(probe, scripts, _WARM_UP_EPISODES)
            warm = probe.memory_bytes()
            played = await _episodes(probe, scripts, _EPISODES)
            figures.episode_kb = round((probe.memory_bytes() - warm) / played / 1e3, 2)
    except EnvironmentFault:
        return


async def _episodes(probe: Probe, scripts: Sequence[Script], most: int) -> int:
    begin, played = time.monotonic(), 0
    while played < most and (not played or time.monotonic() - begin < _BUDGET_S):
        await probe.replay(scripts[played % len(scripts)])
        played += 1
    return played


def measured_ms(plays_by_call: Iterable[Sequence[float]]) -> list[float]:
    """The best time of each call, in milliseconds: what else the machine does is not the environment's."""
    return [min(plays) * 1e3 for plays in plays_by_call]


def _percentiles(values_ms: Sequence[float]) -> dict[str, float]:
    if not values_ms:
        return {"p50": math.nan, "p99": math.nan}
    ordered = sorted(values_ms)
    return {
        "p50": round(ordered[len(ordered) // 2], 4),
        "p99": round(ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)], 4),
    }
