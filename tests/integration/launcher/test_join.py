"""Workers that join a running run: on a real bus, with a leader's files; small programs stand for the workers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollart_hpc.bus import connection, resending, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.lease import LiveView
from rollart_hpc.bus.membership import Member, Membership, MemberView
from rollart_hpc.bus.server import BusEndpoint, NatsServer
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import ConfigError, NameTakenError
from rollart_hpc.launcher import guests, join, restarts
from rollart_hpc.launcher.attempt_log import AttemptLog
from rollart_hpc.launcher.failure import AttemptFailedError
from rollart_hpc.launcher.join import Join
from rollart_hpc.launcher.join_checks import JoinRequest
from rollart_hpc.launcher.run_directory import create, next_attempt, owned
from rollart_hpc.resource_plane.records import Pool
from rollart_hpc.types import Role
from tests.integration.launcher.scripts import DEADLINE_S, TALK, ScriptStarter, small_config, until

REWARD = JoinRequest(role=Role.REWARD, pool="all", hardware=None, workers=2)


@dataclass
class Site:
    """A run's directory with a live attempt, and whoever joins it."""

    directory: Path
    server: NatsServer
    bus: Bus
    view: MemberView
    leader: ExitStack
    starter: ScriptStarter = field(default_factory=lambda: ScriptStarter({"all": TALK}))
    told: asyncio.Event = field(default_factory=asyncio.Event)
    notes: list[str] = field(default_factory=list[str])
    joining: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def begin(self, **changes: Any) -> Attempt:
        """A new attempt, as its leader leaves it to its processes."""
        number = next_attempt(self.directory)
        config = small_config(self.directory)
        task = config.tasks["a"].model_copy(update={"reward": "rollart_hpc.reward_functions.arithmetic:score"})
        config = config.model_copy(update={"tasks": {"a": task}})
        attempt = Attempt(
            run_directory=str(self.directory),
            number=number,
            bus=self.server.endpoint,
            store=None,
            config=config.model_dump(mode="json"),
        )
        AttemptLog(self.directory, number, node="c1").write("started")
        path = self.directory / "attempts" / str(number) / "attempt.json"
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(attempt, **changes)))
        return attempt

    def join(self, request: JoinRequest = REWARD, note: Callable[[str], None] | None = None) -> asyncio.Task[None]:
        one = Join(self.directory, request, note or self.notes.append, lambda devices: self.starter.start)
        self.joining.append(asyncio.create_task(one.run(self.told)))
        return self.joining[-1]

    async def serves(self, number: int = 2) -> list[Member]:
        """Returns when so many guests are members."""
        guests_there: Callable[[], list[Member]] = lambda: [one for one in self.view.all().values() if one.guest]  # noqa: E731
        await self.view.wait_until(lambda: len(guests_there()) >= number, DEADLINE_S)
        return guests_there()

    async def ended(self) -> None:
        await asyncio.wait_for(self.joining[-1], DEADLINE_S)

    async def refused(self, request: JoinRequest = REWARD) -> str:
        """Why nothing joins; nothing was started then."""
        with pytest.raises((ConfigError, NameTakenError)) as caught:
            await asyncio.wait_for(self.join(request), DEADLINE_S)
        assert self.starter.started == []
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 2
        return str(caught.value)


@pytest.fixture
async def site(
    server: NatsServer, bus: Bus, view: MemberView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    monkeypatch.setattr(join, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(guests, "_END_GRACE_S", 5.0)
    directory = create(small_config(tmp_path / "run"))
    with ExitStack() as leader:
        leader.enter_context(owned(directory))
        made = Site(directory, server, bus, view, leader)
        yield made
        for task in made.joining:
            task.cancel()
        if made.joining:
            await asyncio.wait(made.joining)
    assert made.starter.running == []


async def test_guests_serve_until_the_leader_ends_the_attempt_and_the_run_is_over(site: Site):
    site.begin()
    site.join()
    members = await site.serves()
    assert {(one.role, one.pid) for one in members} == {(Role.REWARD, one.pid) for one in site.starter.started}
    assert len({one.member_id for one in members}) == 2
    await until(lambda: len(site.notes) == 3)
    assert site.notes[0] == f"joining attempt 1 of {site.directory}: 2 reward of class cpu in pool all"
    assert {note.partition(" serves, ")[0] for note in site.notes[1:]} == {one.member_id for one in members}
    AttemptLog(site.directory, 1).write("done")
    await site.bus.nc.publish(subjects.END)
    await site.ended()
    assert [process.exit_code for process in site.starter.started] == [0, 0]
    assert site.notes[3:] == ["attempt 1 is over", "the run is done; its workers have ended"]


async def test_guests_leave_in_order_when_they_are_told(site: Site):
    site.begin()
    site.join()
    members = await site.serves()
    site.told.set()
    await site.ended()
    assert [process.tail(1) for process in site.starter.started] == ["ends in order"] * 2
    assert site.notes[-2:] == [f"{one.member_id} has left" for one in sorted(members, key=lambda one: one.member_id)]
    await site.view.wait_until(lambda: site.view.all() == {}, DEADLINE_S)


async def test_a_guest_that_is_killed_is_no_member_at_once_and_started_again(site: Site):
    site.begin()
    site.join()
    killed, other = await site.serves()
    ends: list[str] = []
    site.view.listen(lambda before, after: ends.append(before.member_id) if before and after is None else None)
    os.kill(killed.pid, signal.SIGKILL)
    await until(lambda: len(site.starter.started) == 3)
    assert site.notes[-1] == f"{killed.member_id} ended with killed by SIGKILL; starting it again"
    await site.view.wait_until(lambda: ends == [killed.member_id] and len(site.view.all()) == 2, 10)
    assert site.view.get(other.member_id) == other
    await until(lambda: f"{killed.member_id} serves again, " in site.notes[-1])


async def test_guests_that_are_told_themselves_have_left_and_are_not_started_again(site: Site):
    site.begin()
    site.join()
    for member in await site.serves():
        os.kill(member.pid, signal.SIGTERM)
    await site.ended()
    assert len(site.starter.started) == 2
    assert sum("has left" in note for note in site.notes) == 2
    assert not any("attempt 1 is over" in note for note in site.notes)


async def test_a_guest_that_fails_again_and_again_ends_the_join_and_the_others_leave(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(restarts, "MAX_RESTARTS", 1)
    attempt = site.begin()
    origin = join.own_origin(os.environ)
    site.starter.scripts[f"reward-{origin}-1"] = "import sys; print('no memory'); sys.exit(3)"
    with pytest.raises(AttemptFailedError, match=f"reward-{origin}-1 ended with exit code 3, after") as caught:
        await asyncio.wait_for(site.join(), DEADLINE_S)
    assert "no memory" in caught.value.details
    assert (attempt.directory / "logs" / f"reward-{origin}-1.log").read_text() == "no memory\n" * 2
    assert site.starter.newest(f"reward-{origin}-0").exit_code is not None


async def test_guests_join_the_next_attempt_too(site: Site):
    site.begin()
    site.join()
    first = await site.serves()
    await until(lambda: len(site.notes) == 3)
    AttemptLog(site.directory, 1).write("failed", cause="the controller", next="another attempt")
    await site.bus.nc.publish(subjects.END)
    await until(lambda: "attempt 1 is over" in site.notes)
    await site.view.wait_until(lambda: site.view.all() == {}, DEADLINE_S)
    second = site.begin()
    assert {one.member_id for one in await site.serves()} == {one.member_id for one in first}
    assert len(list((second.directory / "logs").glob("reward-*.log"))) == 2
    assert site.notes[4].startswith(f"joining attempt 2 of {site.directory}")


async def test_a_run_that_does_not_go_on_in_time_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(join, "_NEXT_ATTEMPT_S", 0.2)
    site.begin()
    site.join()
    await site.serves()
    await site.bus.nc.publish(subjects.END)
    await site.ended()
    assert site.notes[-1] == "the run did not go on within 0.2 s; its workers have ended"


async def test_who_waits_for_the_next_attempt_can_be_told_to_stop(site: Site):
    site.begin()
    site.join()
    await site.serves()
    await site.bus.nc.publish(subjects.END)
    await until(lambda: "attempt 1 is over" in site.notes)
    site.told.set()
    await site.ended()
    assert site.notes[-1] == "attempt 1 is over"


async def test_guests_end_when_the_bus_is_gone_for_good(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resending, "AWAY_DEADLINE_S", 0.5)
    monkeypatch.setattr(guests, "_END_GRACE_S", 0.2)
    site.begin()
    site.join()
    await site.serves()
    site.leader.close()
    await site.server.stop()
    await site.ended()
    assert site.notes[-1] == "the run is lost; its workers have ended"


async def test_a_new_pool_is_in_the_live_view_as_long_as_anybody_has_workers_in_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    spot = JoinRequest(role=Role.REWARD, pool="spot", hardware="H20", workers=1)
    pools: LiveView[Pool] = LiveView(site.bus, subjects.POOLS_BUCKET, Pool)
    watching = asyncio.create_task(pools.run())
    site.begin()
    first = site.join(spot)
    await site.serves(1)
    await pools.wait_until(lambda: pools.get("spot") is not None, DEADLINE_S)
    owner = pools.all()["spot"]
    assert (owner.hardware, owner.planned, owner.guest) == ("H20", {Role.REWARD: 1}, True)
    monkeypatch.setattr(join, "own_origin", lambda _: "another-process")
    site.starter.started.clear()
    assert "workers of class H20 have joined as a pool of this name" in await site.refused(
        replace(spot, hardware="H800")
    )
    site.join(spot)
    await site.serves(2)
    await pools.wait_until(lambda: pools.all()["spot"].planned == {Role.REWARD: 2}, DEADLINE_S)
    assert pools.all()["spot"].incarnation == owner.incarnation
    first.cancel()
    await pools.wait_until(
        lambda: (now := pools.get("spot")) is not None and now.incarnation != owner.incarnation, DEADLINE_S
    )
    site.told.set()
    await site.ended()
    await pools.wait_until(lambda: pools.get("spot") is None, DEADLINE_S)
    watching.cancel()
    await asyncio.wait({watching, first})


# --- refusals --------------------------------------------------------------------------------------------


async def test_a_run_that_does_not_run_is_joined_by_nobody(site: Site):
    site.begin()
    AttemptLog(site.directory, 1).write("failed", cause="no luck\nat all")
    site.leader.close()
    assert await site.refused() == f"{site.directory}: the run is failed (no luck); workers join one that runs"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_directory": "/no/such/run"}, "is of the run in /no/such/run, not of"),
        ({"run_directory": "/"}, "is of the run in /, not of"),
        ({"number": 7}, "is of attempt 7, expected 1"),
        (
            {"bus": BusEndpoint(url="nats://127.0.0.1:1", token="t")},
            "a run on one machine listens there alone: join from c1",
        ),
        (
            {"bus": BusEndpoint(url="nats://127.0.0.2:1", token="t")},
            "this machine reaches that address (slurm.interface",
        ),
        ({"bus": None}, "refused the token of this attempt"),
    ],
    ids=[
        "of a run that is not here",
        "of another run",
        "of another attempt",
        "no bus",
        "no bus there",
        "another's bus",
    ],
)
async def test_what_is_not_this_run_s_attempt_is_joined_by_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
):
    monkeypatch.setattr(connection, "_CONNECT_DEADLINE_S", 2.0)
    if changes == {"bus": None}:
        changes = {"bus": msgspec.structs.replace(site.server.endpoint, token="another")}
    site.begin(**changes)
    assert said in await site.refused()


async def test_a_leader_that_does_not_get_on_is_waited_for_and_not_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(join, "_BEGIN_S", 0.2)
    attempt = site.begin()
    (attempt.directory / "attempt.json").write_text('{"run_dir')
    assert "has begun an attempt and not written, within 0.2 s, where its bus is" in await site.refused()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pool": "h20"}, "--pool h20: the run has the pools all; of a new one, --hardware must say the class"),
        ({"hardware": "H20"}, "--hardware H20: the run's pool all is of class cpu; leave it out, or give another"),
        ({"role": Role.ACTOR_GEN}, "model.path = "),
        ({"role": Role.ENVIRONMENT}, "tasks.a.environment = 'm:E': "),
    ],
    ids=["unknown pool", "contradiction", "no model here", "no user code here"],
)
async def test_what_does_not_fit_the_run_does_not_join_it(site: Site, changes: dict[str, Any], said: str):
    site.begin()
    assert said in await site.refused(replace(REWARD, **changes))


async def test_a_name_that_a_member_has_is_not_taken_from_it(site: Site):
    site.begin()
    name = f"reward-{join.own_origin(os.environ)}-1"
    other = Member(member_id=name, role=Role.REWARD, hardware="cpu", node="n", pid=1)
    await Membership(site.bus, other).join()
    assert await site.refused() == f"{name} is a member of the run already; end that process first"
    assert site.view.get(name) == other
