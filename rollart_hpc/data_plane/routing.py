"""Which generation worker takes a request: pure functions over the live view (paper section 5.3).

By tag to a hardware class, within it to the worker that played this trajectory before (its prefix is cached there),
else to the one with the fewest outstanding tokens. When the class has no live worker, or all of them are full, any
other serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollart_hpc.bus.membership import Member

__all__ = ["Member", "PrefixAffinity", "Route", "RoutingPolicy", "WorkerLoad"]


@dataclass(slots=True)
class WorkerLoad:
    """What the asking process has outstanding at a worker."""

    requests: int = 0
    tokens: int = 0
    """Prompt and largest response of those requests."""


NO_LOAD = WorkerLoad()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What is known of a request before it is sent."""

    tag: str = "default"
    hardware: str | None = None
    """The class that the tag is bound to now; None where nothing is declared."""
    sticky: str | None = None
    """The worker that has the prefix of this trajectory."""
    tried: Sequence[str] = ()
    """The worker of each try before this one, which it failed."""


class RoutingPolicy(Protocol):
    """Chooses each request's worker. One instance lives in each process that asks; it must not block."""

    def choose(self, route: Route, workers: Sequence[Member], loads: Mapping[str, WorkerLoad]) -> Member | None:
        """The worker that takes a request; None to wait for a change of the workers.

        Args:
            route: the request.
            workers: the live ones that take new requests, by id.
            loads: what this process has outstanding, by member id; a missing one has nothing.
        """
        ...


class PrefixAffinity:
    """The default policy: affinity, then stickiness, then the fewest outstanding tokens."""

    def choose(self, route: Route, workers: Sequence[Member], loads: Mapping[str, WorkerLoad]) -> Member | None:
        """See `RoutingPolicy`."""
        able = candidates(least_tried(workers, route.tried), route.hardware, loads)
        for member in able:
            if member.member_id == route.sticky:
                return member
        return least_loaded(able, loads)


def candidates(members: Sequence[Member], hardware: str | None, loads: Mapping[str, WorkerLoad]) -> Sequence[Member]:
    """The members of the class; the others too when it has none, or when all of its members are full and not they."""
    if hardware is None:
        return members
    preferred = [member for member in members if member.hardware == hardware]
    if any(not is_full(member, loads) for member in preferred):
        return preferred
    return [member for member in members if not is_full(member, loads)] or preferred or members


def is_full(member: Member, loads: Mapping[str, WorkerLoad]) -> bool:
    """Whether a further request could only wait there; a member without a capacity never is."""
    return 0 < member.capacity <= loads.get(member.member_id, NO_LOAD).requests


def least_tried(members: Sequence[Member], tried: Sequence[str]) -> Sequence[Member]:
    """The members that a request was sent to least often."""
    if not tried:
        return members
    fewest = min((tried.count(member.member_id) for member in members), default=0)
    return [member for member in members if tried.count(member.member_id) == fewest]


def least_loaded(members: Sequence[Member], loads: Mapping[str, WorkerLoad]) -> Member | None:
    """The member with the fewest outstanding tokens; the first by id of several."""
    return min(
        members, key=lambda member: (loads.get(member.member_id, NO_LOAD).tokens, member.member_id), default=None
    )
