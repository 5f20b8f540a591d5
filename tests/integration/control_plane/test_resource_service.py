"""The resource plane on a real bus: workers come and go, and the bindings, their readers and the files follow."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rollart_hpc.bus import lease, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.lease import Lease, LiveView
from rollart_hpc.bus.membership import Member, Membership, MemberView, expel
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane import resource_service
from rollart_hpc.control_plane.environment_worker import EnvironmentCls
from rollart_hpc.control_plane.resource_service import ResourceService
from rollart_hpc.data_plane.worker import Attempt, WorkerContext
from rollart_hpc.errors import FencedError, WaitTimeout
from rollart_hpc.launcher.json_lines import read_records
from rollart_hpc.resource_plane.live_bindings import LiveBindings
from rollart_hpc.resource_plane.records import Binding, Pool, RoleBindings
from rollart_hpc.resource_plane.snapshot import ResourceSnapshot, read_snapshot
from rollart_hpc.types import Role
from rollart_hpc.warm_start.tokenizer import save_tokenizer
from tests.builders import run_config

DEADLINE_S = 30


def two_pools() -> RunConfig:
    config = run_config(tasks={"lake": {}, "sums": {}})
    pool = config.pools["all"]
    h800 = pool.model_copy(update={"hardware": "H800", "environment": 0, "reward": 0})
    h20 = pool.model_copy(update={"hardware": "H20", "actor_train": 0, "actor_gen": 2})
    affinity = {"lake": "H800", "default": "H20"}
    return config.model_copy(update={"pools": {"h800": h800, "h20": h20}, "affinity": affinity})


def gen(number: int, hardware: str, **changes: object) -> Member:
    own = Member(
        member_id=f"actor_gen-{number}",
        role=Role.ACTOR_GEN,
        hardware=hardware,
        node="n",
        pid=1,
        pool=hardware.lower(),
        incarnation=f"{number}",
    )
    return msgspec.structs.replace(own, **changes)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(*services: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(service) for service in services]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.fixture(autouse=True)
def seldom_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a change that is not published at once is missed."""
    monkeypatch.setattr(lease, "RENEW_EVERY_S", 3600.0)


@pytest.fixture
async def service(bus: Bus, view: MemberView, tmp_path: Path) -> AsyncIterator[ResourceService]:
    made = ResourceService(bus, view, two_pools(), tmp_path, 1)
    async with running(made.run()):
        yield made


@pytest.fixture
async def reader(bus: Bus) -> AsyncIterator[LiveBindings]:
    made = LiveBindings(bus, {"lake": "declared"}.get)
    async with running(made.run()):
        yield made


def written(tmp_path: Path) -> ResourceSnapshot:
    found = read_snapshot(tmp_path)
    assert found is not None
    return found


def course(tmp_path: Path, tag: str) -> list[tuple[str, str]]:
    """What is recorded of a tag of generation: where it was bound, and why."""
    records = read_records(tmp_path / "bindings.jsonl", Binding)
    return [(one.hardware, one.reason) for one in records if one.tag == tag and one.role is Role.ACTOR_GEN]


async def test_a_class_that_dies_and_comes_back_is_followed_by_readers_and_record(
    bus: Bus, service: ResourceService, reader: LiveBindings, tmp_path: Path
):
    assert reader.hardware_for("lake") == "declared"
    owners: set[str] = set()
    reader._view.listen(lambda _, after: owners.add(after.incarnation) if after is not None else None)
    await Membership(bus, gen(1, "H20")).join()
    await until(lambda: reader.hardware_for("lake") == "H20")
    await Membership(bus, gen(0, "H800")).join()
    await until(lambda: reader.hardware_for("lake") == "H800")
    assert reader.hardware_for("sums") == reader.hardware_for("no such tag") == "H20"
    await expel(bus, "actor_gen-0")
    await until(lambda: reader.hardware_for("lake") == "H20")
    await Membership(bus, gen(0, "H800", incarnation="again")).join()
    await until(lambda: reader.hardware_for("lake") == "H800")
    await until(lambda: len(course(tmp_path, "lake")) == 5)
    assert course(tmp_path, "lake") == [
        ("", "no actor_gen worker is alive"),
        ("H20", "H800 has no live actor_gen worker; H20 serves"),
        ("H800", "affinity.lake asks for H800"),
        ("H20", "H800 has no live actor_gen worker; H20 serves"),
        ("H800", "H800 is back; affinity.lake asks for it"),
    ]
    assert len(course(tmp_path, "sums")) == 2
    assert len(owners) == 1
    await until(lambda: {one.member_id for one in written(tmp_path).members} == {"actor_gen-0", "actor_gen-1"})
    found = {one.tag: one for one in written(tmp_path).bindings if one.role is Role.ACTOR_GEN}
    assert found == service.bindings[Role.ACTOR_GEN]


async def test_a_worker_that_leaves_in_order_takes_its_class_along(
    bus: Bus, service: ResourceService, reader: LiveBindings
):
    await Membership(bus, gen(1, "H20")).join()
    leaving = Membership(bus, gen(0, "H800"))
    await leaving.join()
    await until(lambda: reader.hardware_for("lake") == "H800")
    await leaving.update(gen(0, "H800", leaving=True))
    await until(lambda: reader.hardware_for("lake") == "H20")


async def test_the_profiler_s_choice_wins_until_it_is_taken_back(
    bus: Bus, service: ResourceService, reader: LiveBindings, tmp_path: Path
):
    for member in (gen(0, "H800"), gen(1, "H20")):
        await Membership(bus, member).join()
    await until(lambda: (reader.hardware_for("lake"), reader.hardware_for("sums")) == ("H800", "H20"))
    service.prefer({"lake": "H20", "sums": "H800"}, "20 % faster")
    await until(lambda: (reader.hardware_for("lake"), reader.hardware_for("sums")) == ("H20", "H800"))
    service.prefer({}, "")
    await until(lambda: reader.hardware_for("lake") == "H800")
    await until(lambda: course(tmp_path, "lake")[-1] == ("H800", "affinity.lake asks for H800"))
    assert course(tmp_path, "lake")[-2] == ("H20", "the profiler asks for H20: 20 % faster")


async def test_readers_keep_the_last_bindings_while_the_controller_is_away(
    bus: Bus, view: MemberView, reader: LiveBindings, tmp_path: Path
):
    await Membership(bus, gen(0, "H800")).join()
    records = LiveView(bus, subjects.BINDINGS_BUCKET, RoleBindings)
    async with running(records.run()):
        service = ResourceService(bus, view, two_pools(), tmp_path, 1)
        async with running(service.run()):
            await until(lambda: reader.hardware_for("sums") == "H800")
            await records.wait_until(lambda: len(records.all()) == len(Role), DEADLINE_S)
        await (await bus.bucket(subjects.BINDINGS_BUCKET)).delete(str(Role.ACTOR_GEN))
        await records.wait_until(lambda: records.get(str(Role.ACTOR_GEN)) is None, DEADLINE_S)
    assert reader.hardware_for("sums") == "H800"


async def test_a_second_controller_takes_the_bindings_over_and_the_first_one_ends(
    bus: Bus, view: MemberView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease, "RENEW_EVERY_S", 0.1)
    first = ResourceService(bus, view, two_pools(), tmp_path, 1)
    ending = asyncio.create_task(first.run())
    reader = LiveBindings(bus, lambda _: "nothing yet")
    async with running(reader.run()):
        await until(lambda: reader.hardware_for("lake") is None)
        second = ResourceService(bus, view, two_pools(), tmp_path, 1)
        async with running(second.run()):
            with pytest.raises(ExceptionGroup) as caught:
                await asyncio.wait_for(ending, DEADLINE_S)
            assert caught.group_contains(FencedError)
            await Membership(bus, gen(0, "H800")).join()
            await until(lambda: reader.hardware_for("lake") == "H800")


async def test_a_bus_that_was_away_costs_no_binding(
    server: NatsServer, bus: Bus, service: ResourceService, reader: LiveBindings
):
    for member in (gen(0, "H800"), gen(1, "H20")):
        await Membership(bus, member).join()
    await until(lambda: reader.hardware_for("sums") == "H20")
    server.kill()
    service.prefer({"sums": "H800"}, "found while the bus was away")
    await server.restart()
    await until(lambda: reader.hardware_for("sums") == "H800")


async def test_a_change_that_the_bus_did_not_take_goes_with_the_next_renewal(
    bus: Bus, view: MemberView, tmp_path: Path, reader: LiveBindings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease, "RENEW_EVERY_S", 0.1)
    refused = asyncio.Event()

    async def refuse(*_: object) -> None:
        refused.set()
        raise TimeoutError

    service = ResourceService(bus, view, two_pools(), tmp_path, 1)
    monkeypatch.setattr(service._leases[Role.ACTOR_GEN], "update", refuse)
    async with running(service.run()):
        await Membership(bus, gen(0, "H800")).join()
        await until(lambda: reader.hardware_for("lake") == "H800")
        assert refused.is_set()


async def test_an_environment_worker_sends_its_turns_where_the_bindings_say(
    server: NatsServer, bus: Bus, view: MemberView, tmp_path: Path
):
    save_tokenizer(tmp_path, max_length=64)
    config = two_pools()
    config = config.model_copy(update={"model": config.model.model_copy(update={"path": tmp_path})})
    data = config.model_dump(mode="json")
    attempt = Attempt(run_directory=str(tmp_path), number=1, bus=server.endpoint, store=None, config=data)
    worker = EnvironmentCls(WorkerContext(attempt=attempt, config=config, bus=bus, view=view, member=others()[0]))
    assert worker._proxy._hardware_for("lake") == "H800"
    async with running(worker.run()):
        await Lease(bus, subjects.BINDINGS_BUCKET, "actor_gen", record(Role.ACTOR_GEN, "H20")).join()
        await until(lambda: worker._proxy._hardware_for("lake") == "H20")
    await worker.close()


def record(role: Role, hardware: str) -> RoleBindings:
    """The tag lake is bound to ``hardware``."""
    bound = Binding(role=role, tag="lake", preferred="", source="", hardware=hardware, reason="", at=0.0)
    return RoleBindings(role=role, by_tag={"lake": bound})


async def test_readers_of_generation_do_not_mind_the_other_roles(bus: Bus, reader: LiveBindings):
    for role, hardware in ((Role.ACTOR_GEN, "H800"), (Role.REWARD, "cpu")):
        await Lease(bus, subjects.BINDINGS_BUCKET, str(role), record(role, hardware)).join()
    await until(lambda: reader._view.get("reward") is not None)
    assert reader.hardware_for("lake") == "H800"


async def test_a_disk_that_takes_nothing_costs_a_warning(
    bus: Bus, view: MemberView, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    absent = tmp_path / "file"
    absent.write_text("no directory")
    service = ResourceService(bus, view, two_pools(), absent, 1)
    reader = LiveBindings(bus, {}.get)
    async with running(service.run(), reader.run()):
        await Membership(bus, gen(0, "H800")).join()
        await until(lambda: reader.hardware_for("lake") == "H800")
        await until(lambda: "resources.json CANNOT BE WRITTEN" in caplog.text)
    assert caplog.text.count("resources.json CANNOT BE WRITTEN") == 1


# --- pools -------------------------------------------------------------------------------------------------


async def test_the_snapshot_has_the_pools_with_their_figures_and_workers(
    bus: Bus, service: ResourceService, tmp_path: Path
):
    for name in ("h20", "h800"):
        pool = Pool(name=name, hardware=name.upper(), planned={Role.ACTOR_GEN: 2}, partition=f"p-{name}")
        await Lease(bus, subjects.POOLS_BUCKET, name, pool).join()
    await Membership(bus, gen(0, "H800")).join()
    await until(lambda: len(written(tmp_path).pools) == 2 and bool(written(tmp_path).members))
    h20, h800 = written(tmp_path).pools
    assert (h800.name, h800.hardware.tflops, h800.partition) == ("h800", 989, "p-h800")
    assert (h800.planned, h800.present) == ({Role.ACTOR_GEN: 2}, {Role.ACTOR_GEN: 1})
    assert h20.present == {Role.ACTOR_GEN: 0}


def trainer() -> Member:
    return Member(member_id="actor_train-0", role=Role.ACTOR_TRAIN, hardware="H800", node="n", pid=1)


def others() -> list[Member]:
    roles = (Role.ENVIRONMENT, Role.REWARD)
    return [Member(member_id=f"{role}-0", role=role, hardware="H20", node="n", pid=1) for role in roles]


async def test_every_worker_is_waited_for_that_is_planned_now(bus: Bus, service: ResourceService):
    waiting = asyncio.create_task(service.wait_for_workers(DEADLINE_S))
    for member in (trainer(), *others(), gen(0, "H800"), gen(1, "H20")):
        await Membership(bus, member).join()
    await until(lambda: service.planned(Role.ACTOR_GEN) == 3 and bool(service._view.get("actor_gen-1")))
    await asyncio.sleep(0)
    assert not waiting.done()
    given_up = Pool(name="h20", hardware="H20", planned={Role.ACTOR_GEN: 1, Role.ENVIRONMENT: 1, Role.REWARD: 1})
    await Lease(bus, subjects.POOLS_BUCKET, "h20", given_up).join()
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert service.planned(Role.ACTOR_GEN) == 2


async def test_a_pool_that_does_not_come_costs_its_share(
    bus: Bus, service: ResourceService, caplog: pytest.LogCaptureFixture
):
    for member in (trainer(), *others(), gen(0, "H800")):
        await Membership(bus, member).join()
    await until(lambda: len(service._view.all()) == 4)
    await service.wait_for_workers(0.1)
    assert "without 2 actor_gen workers" in caplog.text


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (Role.ACTOR_TRAIN, r"1 actor_train workers, of which \[\] joined"),
        (Role.ENVIRONMENT, r"1 environment workers, of which \[\] joined"),
    ],
)
async def test_no_run_goes_on_without_its_trainer_or_without_any_worker_of_a_role(
    bus: Bus, service: ResourceService, missing: Role, said: str
):
    members = [member for member in (trainer(), *others(), gen(0, "H800")) if member.role is not missing]
    for member in members:
        await Membership(bus, member).join()
    await until(lambda: len(service._view.all()) == 3)
    with pytest.raises(WaitTimeout, match=said):
        await service.wait_for_workers(0.1)


async def test_changes_of_load_are_not_written_more_often_than_twice_a_second(
    bus: Bus, service: ResourceService, monkeypatch: pytest.MonkeyPatch
):
    snapshots: list[ResourceSnapshot] = []
    monkeypatch.setattr(resource_service, "_WRITE_EVERY_S", 3600)
    monkeypatch.setattr(resource_service, "write_snapshot", lambda _, snapshot: snapshots.append(snapshot))
    membership = Membership(bus, gen(0, "H800"))
    await membership.join()
    for load in range(20):
        await membership.update(gen(0, "H800", load=load))
    await until(lambda: getattr(service._view.get("actor_gen-0"), "load", 0) == 19)
    assert len(snapshots) <= 1
