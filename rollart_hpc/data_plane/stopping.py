"""How the processes of an attempt tell each other that it is to stop and that it is over, and how waits end then.

A process that was told to stop (`rollart_hpc.data_plane.stop_signals`) says so on the bus, again and again, and goes
on: the controller ends in order, and the leader says when the attempt is over for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.data_plane.stop_signals import StopSignals

_log = logging.getLogger(__name__)
T = TypeVar("T")
_SAY_AGAIN_S = 1.0


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the attempt was told to stop."""

    who: str
    """A member id, controller or leader."""
    reason: str
    """The name of the signal, or other words."""
    at: float
    """Seconds since the epoch, when it was told first."""


async def say_again(bus: Bus, subject: str, message: msgspec.Struct | None = None) -> NoReturn:
    """Publishes a message at once and then every second, until cancelled."""
    while True:
        try:
            await bus.nc.publish(subject, b"" if message is None else codec.encode(message))
        except NatsError as error:
            _log.warning("%s could not be published, trying again: %r", subject, error)
        await asyncio.sleep(_SAY_AGAIN_S)


async def say_when_told(bus: Bus, who: str, signals: StopSignals) -> NoReturn:
    """Waits for a stop signal of this process and then says so, until cancelled."""
    await signals.told.wait()
    name, at = signals.first or ("", 0.0)
    _log.warning("%s came: the run is to stop", name)
    await say_again(bus, subjects.NOTICE, Notice(who=who, reason=name, at=at))


async def hear_notices(bus: Bus, heard: Callable[[Notice], None]) -> None:
    """Calls ``heard`` with each notice; a process hears its own, too."""

    async def receive(message: Msg) -> None:
        heard(codec.decode(message.data, Notice))

    await bus.subscribe(subjects.NOTICE, receive)


async def hear_end(bus: Bus) -> asyncio.Event:
    """An event that is set when the leader says that the attempt is over."""
    over = asyncio.Event()

    async def receive(_: Msg) -> None:
        over.set()

    await bus.subscribe(subjects.END, receive)
    return over


async def unless_stopped(awaitable: Awaitable[T], stop: asyncio.Event) -> T | None:
    """Waits for ``awaitable``; None when ``stop`` is set before, and then it is cancelled and has ended."""
    running, stopping = asyncio.ensure_future(awaitable), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        running.cancel()
        await asyncio.wait({running})
    return None if running.cancelled() else running.result()
