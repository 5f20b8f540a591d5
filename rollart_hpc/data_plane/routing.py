"""Which generation worker takes a request: pure functions over the live view (paper section 5.3).

By tag to a hardware class, within it to the worker that played this trajectory before (its prefix is cached
there), else to the one with the fewest outstanding tokens. When the class has no live worker, any other serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollart_hpc.bus.membership import Member
from rollart_hpc.data_plane.declarations import DEFAULT_TAG


def preferred_hardware(affinity: Mapping[str, str], tag: str) -> str | None:
    """The hardware class that a tag is mapped to; None where nothing is declared."""
    return affinity.get(tag, affinity.get(DEFAULT_TAG))


def candidates(members: Sequence[Member], hardware: str | None) -> list[Member]:
    """The members of the class, or all of them when it has none (or none is preferred)."""
    preferred = [member for member in members if member.hardware == hardware]
    return preferred or list(members)


def least_tried(members: Sequence[Member], tried: Sequence[str]) -> Sequence[Member]:
    """The members that a request was sent to least often; ``tried`` names the worker of each of its tries."""
    fewest = min((tried.count(member.member_id) for member in members), default=0)
    return [member for member in members if tried.count(member.member_id) == fewest]


def choose(
    members: Sequence[Member],
    hardware: str | None,
    sticky: str | None,
    outstanding_tokens: Mapping[str, int],
) -> Member | None:
    """The member that takes the next request; None when there is none at all."""
    able = candidates(members, hardware)
    for member in able:
        if member.member_id == sticky:
            return member
    return min(able, key=lambda member: (outstanding_tokens.get(member.member_id, 0), member.member_id), default=None)
