"""A connection to the run's bus: every operation has a deadline, closing is bounded.

It outlives its server: when that is started again, the connection, its subscriptions and its requests come back
(`rollart_hpc.bus.resending`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import BucketNotFoundError
from nats.js.kv import KeyValue

from rollart_hpc.bus.compat import fix_wait_for
from rollart_hpc.bus.resending import ResendingClient
from rollart_hpc.bus.server import BusEndpoint
from rollart_hpc.errors import NotReachableError

_log = logging.getLogger(__name__)
_CONNECT_DEADLINE_S = 15.0
_CLOSE_DEADLINE_S = 2.0
_RECONNECT_EVERY_S = 0.2
_PENDING_BYTES = 64 << 20
MARKER_TTL_S = 60

MessageHandler = Callable[[Msg], Awaitable[None]]


class Bus:
    """One process's connection. Use `connect`; `nc` and `js` are nats-py's own objects."""

    def __init__(self, client: ResendingClient) -> None:
        self.nc = client
        self.js: JetStreamContext = client.jetstream(timeout=10)
        self._on_reconnect: list[Callable[[], None]] = []
        self._on_lame_duck: list[Callable[[], None]] = []
        self._refused = asyncio.Event()
        self._told: type[Exception] | None = None
        """The kind of error that was logged last, since the last reconnection."""

    @classmethod
    async def connect(cls, endpoint: BusEndpoint, name: str) -> Bus:
        """Connects.

        Raises:
            NotReachableError: no server answered, or it refused the token, within 15 s.
        """
        fix_wait_for()
        client = ResendingClient()
        bus = cls(client)
        connecting = client.connect(
            endpoint.url,
            name=name,
            token=endpoint.token,
            pending_size=_PENDING_BYTES,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RECONNECT_EVERY_S,  # pyright: ignore[reportArgumentType]
            ping_interval=10,
            error_cb=bus._report,
            disconnected_cb=bus._disconnected,
            reconnected_cb=bus._reconnected,
            lame_duck_mode_cb=bus._lame_duck,
        )
        attempt, refused = asyncio.ensure_future(connecting), asyncio.ensure_future(bus._refused.wait())
        try:
            await asyncio.wait({attempt, refused}, timeout=_CONNECT_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
            if bus._refused.is_set():
                raise NotReachableError(f"{name}: the bus at {endpoint.url} refused the token of this attempt")
            if not attempt.done():
                raise NotReachableError(f"{name}: no bus at {endpoint.url} within {_CONNECT_DEADLINE_S:g} s")
            attempt.result()
            client.came(back=False)
        except (OSError, NatsError) as error:
            raise NotReachableError(f"{name}: no bus at {endpoint.url}: {error!r}") from error
        finally:
            refused.cancel()
            attempt.cancel()
        return bus

    async def _report(self, error: Exception) -> None:
        if "authorization" in str(error).lower():
            self._refused.set()
        if type(error) is not self._told:  # each kind once, as long as the server is away
            self._told = type(error)
            _log.warning("bus: %r", error)

    async def _disconnected(self) -> None:
        self.nc.went()

    async def _reconnected(self) -> None:
        self._told = None
        _log.warning("bus: reconnected")
        self.nc.came(back=True)
        for callback in self._on_reconnect:
            callback()

    async def _lame_duck(self) -> None:
        for callback in self._on_lame_duck:
            callback()

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` after each reconnection: watchers must read their keys again."""
        self._on_reconnect.append(callback)

    def on_lame_duck(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` when the server says that it will end: it has stopped its streams already."""
        self._on_lame_duck.append(callback)

    async def subscribe(self, subject: str, handler: MessageHandler, *, queue: str = "") -> Subscription:
        """Subscribes with room for bursts; messages are handled one after the other."""
        return await self.nc.subscribe(
            subject, queue=queue, cb=handler, pending_msgs_limit=1 << 20, pending_bytes_limit=1 << 30
        )

    async def bucket(self, name: str, *, history: int = 1) -> KeyValue:
        """The key-value bucket ``name``, created when it is not there; keys may carry a TTL."""
        try:
            return await self.js.key_value(name)
        except BucketNotFoundError:
            config = KeyValueConfig(bucket=name, history=history, limit_marker_ttl=MARKER_TTL_S)
            return await self.js.create_key_value(config)

    async def close(self) -> None:
        """Flushes and closes within 2 s each."""
        try:
            await asyncio.wait_for(self.nc.flush(), _CLOSE_DEADLINE_S)
        except (TimeoutError, NatsError, OSError):
            _log.warning("bus: closed with unsent messages")
        try:
            await asyncio.wait_for(self.nc.close(), _CLOSE_DEADLINE_S)
        except (TimeoutError, OSError, RuntimeError) as error:  # the last is uvloop's for a transport that is closed
            _log.warning("bus: it did not close in order: %r", error)
