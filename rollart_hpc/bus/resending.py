"""A connection whose requests outlive the server: one that is lost with it is sent again to the next.

Invariants: a request that the server may have lost is sent again as soon as there is a server, so whoever answers
must take repeats; its time-out does not run while there is none. Nobody answering is believed only when the
connection is old enough for everybody to be back.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

AWAY_DEADLINE_S = 60.0
"""How long the server may be away before its processes give up."""
_SETTLE_S = 5.0
"""What others have for coming back, after this process has."""
_ASK_AGAIN_S = 0.1


class ResendingClient(Client):
    """nats-py's client; `came` and `went` are to be its callbacks for connections."""

    def __init__(self) -> None:
        super().__init__()
        self._here, self._gone = asyncio.Event(), asyncio.Event()
        self._came_back = -math.inf

    def came(self, *, back: bool) -> None:
        """There is a connection, for the first time or again."""
        if back:
            self._came_back = asyncio.get_running_loop().time()
        self._gone.clear()
        self._here.set()

    def went(self) -> None:
        """The connection is lost or closed."""
        self._here.clear()
        self._gone.set()

    async def wait_here(self) -> None:
        """Returns when there is a connection; the caller bounds it, or `wait_lost` beside it."""
        await self._here.wait()

    async def wait_lost(self) -> None:
        """Returns when there has been no connection for 60 s."""
        while True:
            await self._gone.wait()
            try:
                async with asyncio.timeout(AWAY_DEADLINE_S):
                    await self._here.wait()
            except TimeoutError:
                return

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """As nats-py's, and sent again after a loss of the server.

        Raises:
            TimeoutError: no answer within ``timeout`` of a server's presence, or no server for 60 s.
            NoRespondersError: nobody serves the subject.
        """
        loop = asyncio.get_running_loop()
        left = timeout
        while left > 0:
            await self._wait_here_or_raise()
            began = loop.time()
            try:
                return await self._unless_gone(super().request(subject, payload, left, old_style, headers))
            except NoRespondersError:
                if loop.time() > self._came_back + _SETTLE_S:
                    raise
                await asyncio.sleep(_ASK_AGAIN_S)
            except ConnectionResetError:
                pass
            left -= loop.time() - began
        raise NatsTimeoutError

    async def _wait_here_or_raise(self) -> None:
        if self._here.is_set() or not self._gone.is_set():
            return
        if self.is_closed:
            raise ConnectionClosedError
        try:
            async with asyncio.timeout(AWAY_DEADLINE_S):
                await self._here.wait()
        except TimeoutError:
            raise NatsTimeoutError from None

    async def _unless_gone(self, asking: Any) -> Msg:
        """The answer; ConnectionResetError when the server is lost before it comes."""
        answer, gone = asyncio.ensure_future(asking), asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answer.cancel()
        if not answer.done() or answer.cancelled():
            raise ConnectionResetError
        return answer.result()
