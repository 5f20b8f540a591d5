"""Batched requests and answers between many coroutines and few workers: the hot path of a turn.

One inbox per requesting process; request ids in the payload; both directions coalesced: everything that
accumulates while the sender waits for its turn on the event loop travels as one message per addressee. No
timer per request: one sweep fails what is overdue. Losses are repaired by the requester, which sends again
under the same id, after a loss of the bus all that is open; a worker answers one id once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from nats.aio.msg import Msg

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.errors import BusError

_log = logging.getLogger(__name__)

_MAX_BATCH = 256


class Identified(Protocol):
    """A struct that carries its request id."""

    @property
    def request_id(self) -> int:
        """Unique within its requester."""
        ...


Q = TypeVar("Q", bound=Identified)
R = TypeVar("R", bound=Identified)


class RequestBatch(msgspec.Struct, Generic[Q], frozen=True, array_like=True):
    """Requests and aborts of one requester, in order."""

    inbox: str
    requests: list[Q]
    aborts: list[int] = []


class _Outbox:
    """Collects items by subject and sends each subject's as one message when the loop gets to it."""

    def __init__(self, bus: Bus, pack: Callable[[list[Any]], bytes], too_large: Callable[[Any, int], None]) -> None:
        self._bus, self._pack, self._too_large = bus, pack, too_large
        self._items: defaultdict[str, list[Any]] = defaultdict(list)
        self._wake = asyncio.Event()

    def add(self, subject: str, item: object) -> None:
        self._items[subject].append(item)
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await self._bus.nc.wait_here()
            self._wake.clear()
            items, self._items = self._items, defaultdict(list)
            for subject, waiting in items.items():
                for start in range(0, len(waiting), _MAX_BATCH):
                    await self._send(subject, waiting[start : start + _MAX_BATCH])

    async def _send(self, subject: str, items: list[Any]) -> None:
        """Sends the items as one message, or as several where one would exceed what the bus carries."""
        payload = self._pack(items)
        if len(payload) <= MAX_PAYLOAD_BYTES:
            await self._bus.nc.publish(subject, payload)
        elif len(items) == 1:
            self._too_large(items[0], len(payload))
        else:
            half = len(items) // 2
            await self._send(subject, items[:half])
            await self._send(subject, items[half:])


class MuxClient(Generic[Q, R]):
    """The requester's side: `send` gives a future, `run` must be running."""

    def __init__(self, bus: Bus, member_id: str, channel: str, result_type: type[R]) -> None:
        self._bus = bus
        self._inbox = subjects.inbox(f"{member_id}.{channel}")
        self._decoder: msgspec.msgpack.Decoder[list[R]] = msgspec.msgpack.Decoder(cast(Any, list)[result_type])
        self._encoder = msgspec.msgpack.Encoder()
        self._outbox = _Outbox(bus, self._pack, self._refuse)
        self._pending: dict[int, asyncio.Future[R]] = {}
        self._sent: dict[int, tuple[str, Q]] = {}
        """Subject and request of what is pending."""
        self._next_id = 0

    def next_id(self) -> int:
        """A request id that this client has not used."""
        self._next_id += 1
        return self._next_id

    async def run(self) -> None:
        """Serves until cancelled; then every open future is cancelled too."""
        self._bus.on_reconnect(self._send_again)
        subscription = await self._bus.subscribe(self._inbox, self._receive)
        try:
            await self._outbox.run()
        finally:
            for future in self._pending.values():
                future.cancel()
            await subscription.unsubscribe()

    def send(self, member_id: str, request: Q) -> asyncio.Future[R]:
        """Sends a request; sending an id again returns the same future."""
        future = self._pending.get(request.request_id)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._pending[request.request_id] = future
        self._sent[request.request_id] = (subjects.mux(member_id), request)
        self._outbox.add(*self._sent[request.request_id])
        return future

    def _send_again(self) -> None:
        """The requests, or their answers, may have been lost with the server."""
        for subject, request in self._sent.values():
            self._outbox.add(subject, request)

    def _take(self, request_id: int) -> asyncio.Future[R] | None:
        self._sent.pop(request_id, None)
        return self._pending.pop(request_id, None)

    def abort(self, member_id: str, request_id: int) -> None:
        """Asks the worker to end a request; the answer comes through the request's future."""
        self._outbox.add(subjects.mux(member_id), request_id)

    def forget(self, request_id: int) -> None:
        """Drops a request: its answer, if one comes, is ignored."""
        future = self._take(request_id)
        if future is not None and not future.done():
            future.cancel()

    def _pack(self, items: list[Any]) -> bytes:
        requests = [item for item in items if not isinstance(item, int)]
        aborts = [item for item in items if isinstance(item, int)]
        return self._encoder.encode(RequestBatch(self._inbox, requests, aborts))

    def _refuse(self, request: Any, size_bytes: int) -> None:
        future = self._take(request.request_id)
        if future is not None and not future.done():
            future.set_exception(BusError(f"a request of {size_bytes} bytes, at most {MAX_PAYLOAD_BYTES} travel"))

    async def _receive(self, message: Msg) -> None:
        for result in self._decoder.decode(message.data):
            future = self._take(result.request_id)
            if future is not None and not future.done():
                future.set_result(result)


class MuxServer(Generic[Q, R]):
    """The worker's side: hands over batches, takes answers, sends them coalesced by inbox."""

    def __init__(
        self,
        bus: Bus,
        member_id: str,
        request_type: type[Q],
        handle: Callable[[str, list[Q], list[int]], None],
    ) -> None:
        self._bus, self._member_id, self._handle = bus, member_id, handle
        self._decoder: msgspec.msgpack.Decoder[RequestBatch[Q]] = msgspec.msgpack.Decoder(
            cast(Any, RequestBatch)[request_type]
        )
        self._encoder = msgspec.msgpack.Encoder()
        self._outbox = _Outbox(bus, self._encoder.encode, self._drop)

    async def run(self) -> None:
        """Serves until cancelled. ``handle(inbox, requests, aborts)`` must not block."""
        subscription = await self._bus.subscribe(subjects.mux(self._member_id), self._receive)
        try:
            await self._outbox.run()
        finally:
            await subscription.unsubscribe()

    def answer(self, inbox: str, result: R) -> None:
        """Sends one answer soon, together with others for the same inbox."""
        self._outbox.add(inbox, result)

    def _drop(self, result: Any, size_bytes: int) -> None:
        _log.error(
            "answer %d of %d bytes cannot travel; its requester's deadline ends it", result.request_id, size_bytes
        )

    async def _receive(self, message: Msg) -> None:
        batch = self._decoder.decode(message.data)
        self._handle(batch.inbox, batch.requests, batch.aborts)
