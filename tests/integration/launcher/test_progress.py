"""What is shown of a run while it goes on."""

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.launcher.progress import ProgressView

RECORD: dict[str, Any] = {
    "step": 3,
    "tasks": {"lake": {"success": 0.5}},
    "trajectories_per_s": 7.0,
    "staleness_max": 1,
    "trajectories": {"trained": 3},
}


@pytest.mark.parametrize(
    ("affinity", "end"),
    [
        pytest.param({}, "staleness 1\n", id="static"),
        pytest.param({"affinity": {"advice": "", "gain": 0.0, "changes": 0}}, "staleness 1\n", id="none is better"),
        pytest.param(
            {"affinity": {"advice": "lake on H800: generation 23% shorter", "gain": 0.23, "changes": 0}},
            "staleness 1  advice: lake on H800: generation 23% shorter\n",
            id="advice",
        ),
    ],
)
async def test_a_step_s_line_ends_with_the_profiler_s_advice(bus: Bus, affinity: dict[str, Any], end: str):
    screen = io.StringIO()
    await ProgressView(Console(file=screen, width=300), 3).follow(bus)
    await bus.nc.publish(subjects.PROGRESS, codec.encode({**RECORD, **affinity}))
    async with asyncio.timeout(10):
        while not screen.getvalue():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert screen.getvalue().endswith(end)
