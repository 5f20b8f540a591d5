"""Records with a time to live that everyone can watch: the live view behind members, pools and bindings.

A record lies in a KV bucket under its key and is renewed by compare-and-set with a TTL. The revision is the fencing
token: an owner whose key was taken by a newer incarnation, or has expired and been taken, gets `FencedError` at its
next renewal and must end. `LiveView` is the live view of a bucket; it learns of a record's end from the expiry marker,
or at once when the key is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from nats.errors import Error as NatsError
from nats.js.errors import BadRequestError, KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue

from rollart_hpc.bus import codec
from rollart_hpc.bus.connection import Bus
from rollart_hpc.errors import FencedError, NameTakenError

_log = logging.getLogger(__name__)
TTL_S = 15
RENEW_EVERY_S = 3.0
_LEAVE_DEADLINE_S = 2.0
_READ_AGAIN_S = 0.5
_COME_BACK_S = 3.0
"""What owners have for renewing a record that the server has lost."""
_WRONG_LAST_SEQUENCE = 10071


class Leased(Protocol):
    """A record that somebody owns."""

    @property
    def incarnation(self) -> str:
        """Of the process that owns it: another one's record is another record, though it has the same key."""
        ...


L = TypeVar("L", bound=Leased)


class Lease(Generic[L]):
    """This process's own record under a key: `join`, keep `run` running, `leave`."""

    def __init__(self, bus: Bus, bucket: str, key: str, record: L) -> None:
        self._bus, self._bucket, self._key = bus, bucket, key
        self.record = record
        self._revision = 0
        self._has_joined = False
        self._renewing = asyncio.Lock()

    async def join(self, *, exclusively: bool = False) -> None:
        """Takes the key, over a dead or older incarnation's record too: the newest process owns it.

        Raises:
            NameTakenError: ``exclusively``, and another process has it.
        """
        bucket = await self._bus.bucket(self._bucket)
        while True:
            self._revision, is_taken = await _last_revision(bucket, self._key)
            if is_taken and exclusively:
                raise NameTakenError(f"{self._key} is there already, in another process")
            if await self._write():
                return

    async def run(self, newest: Callable[[], L] | None = None) -> None:
        """Renews until cancelled, at once when the bus is back after a loss.

        Args:
            newest: asked for the record at each renewal.

        Raises:
            FencedError: another incarnation owns the key.
        """
        again = asyncio.Event()
        self._bus.on_reconnect(again.set)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_EVERY_S):
                    await again.wait()
            again.clear()
            if newest is not None:
                self.record = newest()
            try:
                await self._renew()
            except (NatsError, TimeoutError) as error:
                _log.warning("%s could not be renewed, trying again: %r", self._key, error)

    async def update(self, record: L) -> None:
        """Publishes a change of the record at once."""
        self.record = record
        await self._renew()

    async def leave(self) -> None:
        """Deletes the record, if it is still this incarnation's; bounded, nothing before `join`."""
        if not self._has_joined:
            return
        try:
            async with asyncio.timeout(_LEAVE_DEADLINE_S), self._renewing:
                bucket = await self._bus.bucket(self._bucket)
                await bucket.delete(self._key, last=self._revision)
        except (BadRequestError, NotFoundError):
            _log.info("%s was already gone", self._key)
        except (NatsError, TimeoutError) as error:
            _log.warning("%s stays until its time is over: %r", self._key, error)

    async def _renew(self) -> None:
        async with self._renewing:
            if not await self._write():
                raise FencedError(f"{self._key}: a newer process has taken this name; this one ends")

    async def _write(self) -> bool:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self._revision)}
        subject = f"$KV.{self._bucket}.{self._key}"
        try:
            ack = await self._bus.js.publish(subject, codec.encode(self.record), headers=headers, msg_ttl=TTL_S)
        except BadRequestError as error:
            if error.err_code != _WRONG_LAST_SEQUENCE:
                raise
            return await self._was_written()
        self._revision, self._has_joined = ack.seq, True
        return True

    async def _was_written(self) -> bool:
        """Whether the newest entry is this incarnation's all the same: the bus was lost before it acknowledged it."""
        bucket = await self._bus.bucket(self._bucket)
        try:
            entry = await bucket.get(self._key)
        except KeyNotFoundError:
            return False
        if not entry.value or codec.decode(entry.value, type(self.record)).incarnation != self.record.incarnation:
            return False
        self._revision, self._has_joined = int(entry.revision or 0), True
        return True


async def _last_revision(bucket: KeyValue, key: str) -> tuple[int, bool]:
    """The newest revision of a key, and whether there is a record under it."""
    try:
        entry = await bucket.get(key)
    except KeyNotFoundError as error:
        deleted = getattr(error, "entry", None)
        return int(getattr(deleted, "revision", 0) or 0), False
    return int(entry.revision or 0), True


class LiveView(Generic[L]):
    """The live view of all records of a bucket. `run` must be running; listeners get (before, after) of each change."""

    def __init__(self, bus: Bus, bucket: str, record_type: type[L]) -> None:
        self._bus, self._bucket, self._record_type = bus, bucket, record_type
        self._records: dict[str, L] = {}
        self._listeners: list[Callable[[L | None, L | None], None]] = []
        self._changed = asyncio.Condition()

    def listen(self, listener: Callable[[L | None, L | None], None]) -> None:
        """Calls ``listener`` for every new record (before is None), change and end (after is None)."""
        self._listeners.append(listener)

    def get(self, key: str) -> L | None:
        """The record under a key, if it is there."""
        return self._records.get(key)

    def all(self) -> dict[str, L]:
        """Every record by key."""
        return dict(self._records)

    async def wait_until(self, holds: Callable[[], bool], deadline_s: float) -> None:
        """Waits until a condition on this view holds.

        Raises:
            TimeoutError: it did not within the deadline.
        """
        async with asyncio.timeout(deadline_s), self._changed:
            await self._changed.wait_for(holds)

    async def run(self) -> None:
        """Watches until cancelled; reads everything again after a reconnection."""
        again = asyncio.Event()
        self._bus.on_reconnect(again.set)
        while True:
            again.clear()
            try:
                bucket = await self._bus.bucket(self._bucket)
                watcher = await bucket.watchall()
            except (NatsError, TimeoutError) as error:
                _log.warning("the %s could not be read, trying again: %r", self._bucket, error)
                await asyncio.sleep(_READ_AGAIN_S)
                continue
            watching = asyncio.ensure_future(self._watch(bucket, watcher))
            restart = asyncio.ensure_future(again.wait())
            try:
                await asyncio.wait({watching, restart}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
            finally:
                watching.cancel()
                restart.cancel()
                await watcher.stop()

    async def _watch(self, bucket: KeyValue, watcher: KeyValue.KeyWatcher) -> None:
        seen: set[str] | None = set()
        async with asyncio.TaskGroup() as group:
            async for entry in watcher:
                if entry is None:
                    if missing := set(self._records) - (seen or set()):
                        group.create_task(self._drop_missing(bucket, missing))
                    seen = None
                else:
                    await self._take(entry, seen)

    async def _drop_missing(self, bucket: KeyValue, keys: set[str]) -> None:
        """Drops records that a listing after a loss of the bus left out, unless they are there all the same.

        The server may have lost the newest renewals, which their owners make up for at once; and a listing may end
        before its first entry.
        """
        before = {key: self._records[key] for key in keys if key in self._records}
        await asyncio.sleep(_COME_BACK_S)
        for key, record in before.items():
            if self._records.get(key) != record:
                continue
            try:
                await bucket.get(key)
            except KeyNotFoundError:
                await self._set(key, None)
            except (NatsError, TimeoutError) as error:
                _log.warning("%s could not be looked up: %r", key, error)

    async def _take(self, entry: KeyValue.Entry, seen: set[str] | None) -> None:
        record = None if entry.operation else codec.decode(entry.value or b"", self._record_type)
        if seen is not None and record is not None:
            seen.add(entry.key)
        await self._set(entry.key, record)

    async def _set(self, key: str, after: L | None) -> None:
        before = self._records.pop(key, None)
        if after is not None:
            self._records[key] = after
        if before == after:
            return
        for listener in self._listeners:
            listener(before, after)
        async with self._changed:
            self._changed.notify_all()
