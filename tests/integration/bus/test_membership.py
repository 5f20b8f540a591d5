import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from rollart_hpc.bus import lease
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, Membership, MemberView, expel
from rollart_hpc.errors import FencedError, WaitTimeout
from rollart_hpc.types import Role


def member(member_id: str = "actor_gen-0", **changes: object) -> Member:
    return msgspec.structs.replace(
        Member(member_id=member_id, role=Role.ACTOR_GEN, hardware="H20", node="n", pid=1, incarnation="a"), **changes
    )


@asynccontextmanager
async def running(view: MemberView):
    task = asyncio.create_task(view.run())
    try:
        yield view
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_members_that_join_are_seen_and_members_that_leave_are_gone(bus: Bus):
    async with running(MemberView(bus)) as view:
        own = Membership(bus, member())
        await own.join()
        assert await view.wait_for(Role.ACTOR_GEN, 1, 5) == [member()]
        gone = asyncio.Event()
        view.listen(lambda before, after: gone.set() if after is None else None)
        await own.leave()
        await asyncio.wait_for(gone.wait(), 5)
        assert view.of_role(Role.ACTOR_GEN) == []


async def test_members_that_were_there_before_are_seen(bus: Bus):
    await Membership(bus, member()).join()
    async with running(MemberView(bus)) as view:
        assert await view.wait_for(Role.ACTOR_GEN, 1, 5) == [member()]


async def test_a_change_of_a_member_reaches_everyone(bus: Bus):
    async with running(MemberView(bus)) as view:
        own = Membership(bus, member())
        await own.join()
        await view.wait_for(Role.ACTOR_GEN, 1, 5)
        changed = asyncio.Event()
        view.listen(lambda before, after: changed.set())
        await own.update(member(version=7))
        await asyncio.wait_for(changed.wait(), 5)
        assert view.get("actor_gen-0") == member(version=7)


async def test_an_older_incarnation_is_fenced_by_a_newer_one(bus: Bus):
    old, new = Membership(bus, member()), Membership(bus, member(incarnation="b"))
    await old.join()
    await new.join()
    with pytest.raises(FencedError, match="newer process"):
        await old.update(member(version=1))
    await new.update(member(incarnation="b", version=1))


async def test_a_fenced_member_does_not_delete_its_successor_when_it_leaves(bus: Bus):
    old, new = Membership(bus, member()), Membership(bus, member(incarnation="b"))
    await old.join()
    await new.join()
    await old.leave()
    async with running(MemberView(bus)) as view:
        assert (await view.wait_for(Role.ACTOR_GEN, 1, 5))[0].incarnation == "b"


async def test_a_member_that_stops_renewing_expires(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "TTL_S", 1)
    async with running(MemberView(bus)) as view:
        await Membership(bus, member()).join()
        await view.wait_for(Role.ACTOR_GEN, 1, 5)
        gone = asyncio.Event()
        view.listen(lambda before, after: gone.set() if after is None else None)
        await asyncio.wait_for(gone.wait(), 5)


async def test_a_dead_process_is_expelled_at_once_and_its_successor_may_join(bus: Bus):
    async with running(MemberView(bus)) as view:
        await Membership(bus, member()).join()
        await view.wait_for(Role.ACTOR_GEN, 1, 5)
        gone = asyncio.Event()
        view.listen(lambda before, after: gone.set() if after is None else None)
        await expel(bus, "actor_gen-0")
        await asyncio.wait_for(gone.wait(), 5)
        await Membership(bus, member(incarnation="b")).join()
        assert (await view.wait_for(Role.ACTOR_GEN, 1, 5))[0].incarnation == "b"


async def test_waiting_for_members_says_who_is_missing(bus: Bus):
    async with running(MemberView(bus)) as view:
        await Membership(bus, member()).join()
        with pytest.raises(WaitTimeout, match=r"2 actor_gen workers, of which \['actor_gen-0'\] joined"):
            await view.wait_for(Role.ACTOR_GEN, 2, 0.5)


async def test_a_listing_that_leaves_out_members_ends_those_alone_that_are_gone(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
):
    """After a loss of the bus a listing may end before its first entry."""
    monkeypatch.setattr(lease, "_COME_BACK_S", 0.1)
    async with running(MemberView(bus)) as view:
        for name in ("actor_gen-0", "actor_gen-1"):
            await Membership(bus, member(name)).join()
        await view.wait_for(Role.ACTOR_GEN, 2, 5)
    bucket = await bus.bucket("members")
    await bucket.delete("actor_gen-1")

    async def nothing():
        yield None
        await asyncio.Event().wait()

    watching = asyncio.create_task(view._watch(bucket, nothing()))  # pyright: ignore
    await view.wait_until(lambda: view.get("actor_gen-1") is None, 5)
    assert view.get("actor_gen-0") == member()
    watching.cancel()
    await asyncio.wait({watching})
