"""The life of the controller's process. TERM, INT and USR2 mean: end at the next step boundary, with a checkpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.control_plane.controller import Controller
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.data_plane.worker_process import stop_signals
from rollart_hpc.observe.failures import record_failure
from rollart_hpc.observe.logs import log_to_stderr


async def control(attempt: Attempt) -> None:
    """Runs one attempt's control plane to its end.

    Raises:
        RollartError: a service of it failed.
    """
    stop = stop_signals()
    bus = await Bus.connect(attempt.bus, "controller")
    view = MemberView(bus)
    controller = Controller(attempt, bus, view)

    async def forward_stop() -> None:
        await stop.wait()
        controller.request_stop()

    try:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(view.run()), group.create_task(forward_stop())]
            try:
                await controller.run()
            finally:
                for helper in helpers:
                    helper.cancel()
    finally:
        await bus.close()


def run_controller(attempt_file: Path) -> None:
    """The main function of the controller's process."""
    import uvloop

    log_to_stderr("controller")
    attempt = Attempt.read(attempt_file)
    try:
        uvloop.run(control(attempt))
    except Exception as error:
        record_failure(attempt.failures, "controller", error)
        raise
