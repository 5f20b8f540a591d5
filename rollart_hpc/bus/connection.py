"""A connection to the run's bus: every operation has a deadline, closing is bounded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import BucketNotFoundError
from nats.js.kv import KeyValue

from rollart_hpc.bus.compat import fix_wait_for
from rollart_hpc.bus.server import BusEndpoint
from rollart_hpc.errors import NotReachableError

_log = logging.getLogger(__name__)
_CONNECT_DEADLINE_S = 15.0
_CLOSE_DEADLINE_S = 2.0
_PENDING_BYTES = 64 << 20
MARKER_TTL_S = 60

MessageHandler = Callable[[Msg], Awaitable[None]]


class Bus:
    """One process's connection. Use `connect`; `nc` and `js` are nats-py's own objects."""

    def __init__(self, client: Client) -> None:
        self.nc = client
        self.js: JetStreamContext = client.jetstream(timeout=10)
        self._on_reconnect: list[Callable[[], None]] = []
        self._refused = asyncio.Event()

    @classmethod
    async def connect(cls, endpoint: BusEndpoint, name: str) -> Bus:
        """Connects.

        Raises:
            NotReachableError: no server answered, or it refused the token, within 15 s.
        """
        fix_wait_for()
        client = Client()
        bus = cls(client)
        connecting = client.connect(
            endpoint.url,
            name=name,
            token=endpoint.token,
            pending_size=_PENDING_BYTES,
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            ping_interval=10,
            error_cb=bus._report,
            reconnected_cb=bus._reconnected,
        )
        attempt, refused = asyncio.ensure_future(connecting), asyncio.ensure_future(bus._refused.wait())
        try:
            await asyncio.wait({attempt, refused}, timeout=_CONNECT_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
            if bus._refused.is_set():
                raise NotReachableError(f"{name}: the bus at {endpoint.url} refused the token of this attempt")
            if not attempt.done():
                raise NotReachableError(f"{name}: no bus at {endpoint.url} within {_CONNECT_DEADLINE_S:g} s")
            attempt.result()
        except (OSError, NatsError) as error:
            raise NotReachableError(f"{name}: no bus at {endpoint.url}: {error!r}") from error
        finally:
            refused.cancel()
            attempt.cancel()
        return bus

    async def _report(self, error: Exception) -> None:
        if "authorization" in str(error).lower():
            self._refused.set()
        _log.warning("bus: %r", error)

    async def _reconnected(self) -> None:
        _log.warning("bus: reconnected")
        for callback in self._on_reconnect:
            callback()

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` after each reconnection: watchers must read their keys again."""
        self._on_reconnect.append(callback)

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
        except (TimeoutError, NatsError):
            _log.warning("bus: closed with unsent messages")
        try:
            await asyncio.wait_for(self.nc.close(), _CLOSE_DEADLINE_S)
        except TimeoutError:
            _log.warning("bus: close did not end in time")
