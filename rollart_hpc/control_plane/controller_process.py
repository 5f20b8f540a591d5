"""The life of the controller's process.

It gives the leader a sign of life every second. A stop signal, or the notice of any other process, means: end at the
next step boundary, with everything saved. It ends with 75 when it stopped before the run was done. When the leader
says that the attempt is over, it ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.bus.resending import AWAY_DEADLINE_S
from rollart_hpc.control_plane.controller import Controller
from rollart_hpc.control_plane.protocol import announcer, unobserved
from rollart_hpc.data_plane.stop_signals import EXIT_STOPPED, StopSignals, disregard_stop_signals
from rollart_hpc.data_plane.stopping import hear_end, hear_notices, say_again, say_when_told, unless_stopped
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import NotReachableError, RollartError
from rollart_hpc.observe.failures import innermost, record_failure
from rollart_hpc.observe.logs import log_to_stderr

_log = logging.getLogger(__name__)


async def control(attempt: Attempt) -> bool:
    """Runs one attempt's control plane to its end; True when it was stopped before the run was done.

    Raises:
        RollartError: a service of it failed.
    """
    signals = StopSignals()
    bus = await Bus.connect(attempt.bus, "controller")
    view = MemberView(bus)
    controller = Controller(attempt, bus, view, announcer(bus) if attempt.announces else unobserved)
    over = await hear_end(bus)
    await hear_notices(bus, lambda _: controller.request_stop())

    async def stop_when_told() -> None:
        await signals.told.wait()
        controller.request_stop()

    try:
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(view.run()),
                group.create_task(controller.resources.run()),
                group.create_task(stop_when_told()),
                group.create_task(say_when_told(bus, "controller", signals)),
                group.create_task(say_again(bus, subjects.ALIVE)),
                group.create_task(_end_when_lost(bus)),
            ]
            try:
                return await unless_stopped(controller.run(), over) is not False
            finally:
                for helper in helpers:
                    helper.cancel()
    finally:
        await bus.close()
        disregard_stop_signals()


async def _end_when_lost(bus: Bus) -> None:
    await bus.nc.wait_lost()
    raise NotReachableError(f"the bus was away for {AWAY_DEADLINE_S:g} s; its leader is gone, and the controller ends")


def run_controller(attempt_file: Path) -> None:
    """The main function of the controller's process."""
    import uvloop

    log_to_stderr("controller")
    attempt = Attempt.read(attempt_file)
    try:
        is_stopped = uvloop.run(control(attempt))
    except Exception as error:
        _log.exception("the controller failed")
        record_failure(attempt.failures, "controller", error)
        sys.exit(max((one.exit_code for one in innermost(error) if isinstance(one, RollartError)), default=1))
    if is_stopped:
        sys.exit(EXIT_STOPPED)
