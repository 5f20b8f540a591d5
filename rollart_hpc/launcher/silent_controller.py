"""Ends an attempt whose controller hangs: it is no member, everybody waits for it, and it does not end by itself.

Waits for the controller's sign of life, which comes every second once it runs; the leader kills what is silent.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from nats.aio.msg import Msg

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.launcher.failure import AttemptFailedError
from rollart_hpc.processes import ManagedProcess

_FIRST_SIGN_S = 600.0
"""For a step to be started and the program to be loaded from a shared file system."""
_SILENCE_S = 60.0
_LOOK_EVERY_S = 1.0


async def end_when_silent(bus: Bus, controller: ManagedProcess) -> NoReturn:
    """Watches until cancelled. Time without the bus does not count, nor time in which this process was stopped, too.

    Raises:
        AttemptFailedError: the controller gave no sign of life for 60 s, or none at all for 600 s.
    """
    heard = asyncio.Event()

    async def receive(_: Msg) -> None:
        heard.set()

    await bus.subscribe(subjects.ALIVE, receive)
    limit_s, silent_s = _FIRST_SIGN_S, 0.0
    while silent_s < limit_s:
        await bus.nc.wait_here()
        await asyncio.sleep(_LOOK_EVERY_S)
        silent_s += _LOOK_EVERY_S
        if heard.is_set():
            heard.clear()
            limit_s, silent_s = _SILENCE_S, 0.0
    raise AttemptFailedError(
        f"{controller.name} gave no sign of life for {limit_s:g} s and is killed: it hangs, its node does, or the file "
        "system of the run does not answer",
        controller.tail(),
    )
