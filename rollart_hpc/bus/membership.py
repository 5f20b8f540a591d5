"""Who is there: every process is a member with a time to live; everyone can watch all members.

A member's key lives in the KV bucket ``members`` and is renewed by compare-and-set with a TTL. The revision is
the fencing token: a member whose key was taken by a newer incarnation, or has expired and been taken, gets
`FencedError` at its next renewal and must end. `MemberView` is the live view; it learns of a member's end from
the expiry marker, or at once when the supervisor deletes the key of a process that it saw die.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import BadRequestError, KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.errors import FencedError, WaitTimeout
from rollart_hpc.types import Role

_log = logging.getLogger(__name__)
TTL_S = 10
RENEW_EVERY_S = 3.0
_LEAVE_DEADLINE_S = 2.0
_WRONG_LAST_SEQUENCE = 10071


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process as others see it."""

    member_id: str
    role: Role
    hardware: str
    """Hardware class of its pool."""
    node: str
    pid: int
    rank: int = 0
    """Trainer rank; 0 for other roles."""
    group_rank: int = 0
    """Data-parallel rank of a trainer; 0 for other roles."""
    capacity: int = 0
    """Trajectories that an environment worker plays at once."""
    version: int = -1
    """Weight version that a generation worker serves."""
    incarnation: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    """A restarted process is another one, though it has the same member id."""


class Membership:
    """This process's own entry: `join`, keep `run` running, `leave`."""

    def __init__(self, bus: Bus, member: Member) -> None:
        self._bus = bus
        self.member = member
        self._revision = 0
        self._has_joined = False
        self._renewing = asyncio.Lock()

    async def join(self) -> None:
        """Takes the member's name, over a dead or older incarnation too: the newest process owns it."""
        bucket = await self._bus.bucket(subjects.MEMBERS_BUCKET)
        while True:
            self._revision = await _last_revision(bucket, self.member.member_id)
            if await self._write():
                return

    async def run(self) -> None:
        """Renews until cancelled.

        Raises:
            FencedError: another incarnation owns the name.
        """
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await self._renew()

    async def update(self, member: Member) -> None:
        """Publishes a change of this member at once."""
        self.member = member
        await self._renew()

    async def leave(self) -> None:
        """Deletes the entry, if it is still this incarnation's; bounded, nothing before `join`."""
        if not self._has_joined:
            return
        try:
            async with asyncio.timeout(_LEAVE_DEADLINE_S), self._renewing:
                bucket = await self._bus.bucket(subjects.MEMBERS_BUCKET)
                await bucket.delete(self.member.member_id, last=self._revision)
        except (BadRequestError, NotFoundError):
            _log.info("member %s was already gone", self.member.member_id)
        except (NatsError, TimeoutError) as error:
            _log.warning("member %s stays until its time is over: %r", self.member.member_id, error)

    async def _renew(self) -> None:
        async with self._renewing:
            if not await self._write():
                raise FencedError(f"{self.member.member_id}: a newer process has taken this name; this one ends")

    async def _write(self) -> bool:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self._revision)}
        subject = f"$KV.{subjects.MEMBERS_BUCKET}.{self.member.member_id}"
        try:
            ack = await self._bus.js.publish(subject, codec.encode(self.member), headers=headers, msg_ttl=TTL_S)
        except BadRequestError as error:
            if error.err_code != _WRONG_LAST_SEQUENCE:
                raise
            return False
        self._revision, self._has_joined = ack.seq, True
        return True


async def _last_revision(bucket: KeyValue, key: str) -> int:
    try:
        entry = await bucket.get(key)
    except KeyNotFoundError as error:
        deleted = getattr(error, "entry", None)
        return int(getattr(deleted, "revision", 0) or 0)
    return int(entry.revision or 0)


async def expel(bus: Bus, member_id: str) -> None:
    """Deletes a member whose process is known to be dead, before its time to live is over."""
    bucket = await bus.bucket(subjects.MEMBERS_BUCKET)
    await bucket.delete(member_id)


MemberListener = Callable[[Member | None, Member | None], None]


class MemberView:
    """The live view of all members. `run` must be running; listeners get (before, after) of each change."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._members: dict[str, Member] = {}
        self._listeners: list[MemberListener] = []
        self._changed = asyncio.Condition()

    def listen(self, listener: MemberListener) -> None:
        """Calls ``listener`` for every join (before is None), change and end (after is None)."""
        self._listeners.append(listener)

    def get(self, member_id: str) -> Member | None:
        """The member of that id, if it is there."""
        return self._members.get(member_id)

    def of_role(self, role: Role) -> list[Member]:
        """Live members of a role, by rank and id."""
        members = (member for member in self._members.values() if member.role == role)
        return sorted(members, key=lambda member: (member.rank, member.member_id))

    async def wait_for(self, role: Role, count: int, deadline_s: float) -> list[Member]:
        """Waits until ``count`` members of a role are there.

        Raises:
            WaitTimeout: they were not within the deadline; the text says which are.
        """
        try:
            async with asyncio.timeout(deadline_s), self._changed:
                await self._changed.wait_for(lambda: len(self.of_role(role)) >= count)
        except TimeoutError:
            present = [member.member_id for member in self.of_role(role)]
            raise WaitTimeout(f"{count} {role} workers, of which {present} joined", str(role), deadline_s) from None
        return self.of_role(role)

    async def run(self) -> None:
        """Watches until cancelled; reads everything again after a reconnection."""
        again = asyncio.Event()
        self._bus.on_reconnect(again.set)
        while True:
            again.clear()
            bucket = await self._bus.bucket(subjects.MEMBERS_BUCKET)
            watcher = await bucket.watchall()
            watching = asyncio.ensure_future(self._watch(watcher))
            restart = asyncio.ensure_future(again.wait())
            try:
                await asyncio.wait({watching, restart}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
            finally:
                watching.cancel()
                restart.cancel()
                await watcher.stop()

    async def _watch(self, watcher: KeyValue.KeyWatcher) -> None:
        seen: set[str] | None = set()
        async for entry in watcher:
            if entry is None:
                for key in set(self._members) - (seen or set()):
                    await self._set(key, None)
                seen = None
                continue
            member = None if entry.operation else codec.decode(entry.value or b"", Member)
            if seen is not None and member is not None:
                seen.add(entry.key)
            await self._set(entry.key, member)

    async def _set(self, member_id: str, after: Member | None) -> None:
        before = self._members.pop(member_id, None)
        if after is not None:
            self._members[member_id] = after
        if before == after:
            return
        for listener in self._listeners:
            listener(before, after)
        async with self._changed:
            self._changed.notify_all()
