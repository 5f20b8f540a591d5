"""Who is there: every worker process is a member with a time to live; everyone can watch all members.

A member is a record of the live view (`rollart_hpc.bus.lease`) under its member id. The supervisor deletes the record
of a process that it saw die, so that nobody waits for its time to live.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.lease import Lease, LiveView
from rollart_hpc.errors import WaitTimeout
from rollart_hpc.types import Role


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process as others see it."""

    member_id: str
    role: Role
    hardware: str
    """Hardware class of its pool."""
    node: str
    pid: int
    pool: str = ""
    rank: int = 0
    """Trainer rank; 0 for other roles."""
    group_rank: int = 0
    """Data-parallel rank of a trainer; 0 for other roles."""
    capacity: int = 0
    """What it has room for at once: trajectories of an environment worker, requests that an engine batches."""
    load: int = 0
    """How much of that it was busy with when it last renewed its membership."""
    version: int = -1
    """Weight version that a generation worker serves."""
    guest: bool = False
    """It joined a running run, and may leave it again."""
    leaving: bool = False
    """It takes nothing new and ends when it is done with what it has."""
    incarnation: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    """A restarted process is another one, though it has the same member id."""


class Membership(Lease[Member]):
    """This process's own entry among the members."""

    def __init__(self, bus: Bus, member: Member) -> None:
        super().__init__(bus, subjects.MEMBERS_BUCKET, member.member_id, member)

    @property
    def member(self) -> Member:
        """The entry as it was last published."""
        return self.record


async def expel(bus: Bus, member_id: str) -> None:
    """Deletes a member whose process is known to be dead, before its time to live is over."""
    bucket = await bus.bucket(subjects.MEMBERS_BUCKET)
    await bucket.delete(member_id)


MemberListener = Callable[[Member | None, Member | None], None]


class MemberView(LiveView[Member]):
    """The live view of all members."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, subjects.MEMBERS_BUCKET, Member)

    def of_role(self, role: Role) -> list[Member]:
        """Live members of a role, by rank and id."""
        members = (member for member in self._records.values() if member.role == role)
        return sorted(members, key=lambda member: (member.rank, member.member_id))

    async def wait_for(self, role: Role, count: int, deadline_s: float) -> list[Member]:
        """Waits until ``count`` members of a role are there.

        Raises:
            WaitTimeout: they were not within the deadline; the text says which are.
        """
        try:
            await self.wait_until(lambda: len(self.of_role(role)) >= count, deadline_s)
        except TimeoutError:
            present = [member.member_id for member in self.of_role(role)]
            raise WaitTimeout(f"{count} {role} workers, of which {present} joined", str(role), deadline_s) from None
        return self.of_role(role)
