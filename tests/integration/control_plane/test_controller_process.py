"""The controller's process as the leader starts it, before any worker is there."""

import asyncio
import json
import os
from pathlib import Path

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.data_plane.stop_signals import EXIT_STOPPED
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.launcher.plan import controller_command
from rollart_hpc.processes import ManagedProcess, compute_environment
from tests.builders import run_config
from tests.integration.control_plane.trainers import ARCHITECTURE

DEADLINE_S = 60


async def test_it_says_that_it_lives_again_and_again_until_it_is_over(server: NatsServer, bus: Bus, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(ARCHITECTURE))
    config = run_config().model_dump(mode="json")
    config["model"]["path"] = str(tmp_path)
    attempt = Attempt(run_directory=str(tmp_path), number=1, bus=server.endpoint, store=None, config=config)
    heard: asyncio.Queue[object] = asyncio.Queue()
    await bus.subscribe(subjects.ALIVE, heard.put)
    process = await ManagedProcess.start(
        "controller",
        controller_command(attempt.write()),
        log=tmp_path / "log",
        environment=compute_environment(os.environ),
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(3):
                await heard.get()
        await bus.nc.publish(subjects.END)
        assert await asyncio.wait_for(process.wait(), DEADLINE_S) == EXIT_STOPPED
    finally:
        await process.end(0.0)
