"""A pull consumer that hands messages over as they come.

The client library's ``fetch`` waits until its batch is full or its time is over; here a request for more is always
open at the server, so that a message is delivered the moment it is stored, and whatever accumulated while the
reader was busy comes as one list.
"""

from __future__ import annotations

import asyncio
import json

from nats.aio.msg import Msg

from rollart_hpc.bus.connection import Bus

_CREDIT = 512
"""Messages that the server may send before the next request."""
_EXPIRES_S = 20.0


class PullConsumer:
    """Reads one durable consumer of one stream."""

    def __init__(self, bus: Bus, stream: str, consumer: str) -> None:
        self._bus = bus
        self._next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = bus.nc.new_inbox()
        self._messages: asyncio.Queue[Msg | None] = asyncio.Queue()
        """None wakes the reader: it has to ask again."""
        self._credit = 0

    async def start(self) -> None:
        """Subscribes and asks for the first messages; asks again after a reconnection."""
        await self._bus.subscribe(self._inbox, self._receive)
        self._bus.on_reconnect(self._lost)

    async def read(self) -> list[Msg]:
        """Waits for messages; returns all that have come. Each is to be acknowledged."""
        while True:
            if self._credit <= _CREDIT // 2:
                await self._ask()
            try:
                async with asyncio.timeout(_EXPIRES_S):
                    items = [await self._messages.get()]
            except TimeoutError:
                self._forget_credit()
                continue
            while not self._messages.empty():
                items.append(self._messages.get_nowait())
            if messages := [item for item in items if item is not None]:
                self._credit -= len(messages)
                return messages

    async def _ask(self) -> None:
        request = {"batch": _CREDIT - self._credit, "expires": int(_EXPIRES_S * 1e9)}
        self._credit = _CREDIT
        await self._bus.nc.publish(self._next_subject, json.dumps(request).encode(), reply=self._inbox)

    async def _receive(self, message: Msg) -> None:
        if message.headers and "Status" in message.headers:
            # A request has expired or was refused: what it still allowed is gone.
            self._forget_credit()
            await self._ask()
        else:
            self._messages.put_nowait(message)

    def _lost(self) -> None:
        """The server that had the request is gone."""
        self._forget_credit()
        self._messages.put_nowait(None)

    def _forget_credit(self) -> None:
        self._credit = 0
