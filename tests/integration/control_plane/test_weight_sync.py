"""The weight-sync protocol over the real bus and catalogue, with trainers and generation workers that obey a test."""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from rollart_hpc.bus.calls import call
from rollart_hpc.bus.codec import encode
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView, expel
from rollart_hpc.bus.subjects import STORE_LOST, WEIGHTS_BUCKET
from rollart_hpc.config.modes import WeightTransfer
from rollart_hpc.control_plane import weight_sync
from rollart_hpc.control_plane.weight_sync import WeightSync, at_any_time
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.declarations import register
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.errors import MissingWeightsError, RemoteError, StoreFullError, WaitTimeout, WeightsError
from rollart_hpc.types import Bucket, Manifest, Role
from rollart_hpc.weights.catalog import ManifestCatalog, Publication
from rollart_hpc.weights.store import StoreLoss
from tests.integration.control_plane.scripted_engine import seen

Start = Callable[..., asyncio.Task[None]]
PROBE = [1, 7, 2, 8]
STEPS = ["prefetch", "suspend", "load", "resume", "probe"]


def logprobs_under(version: int) -> list[float]:
    return [-(version + 1) / number for number in PROBE[1:]]


class Script:
    """What happened, and what shall happen; shared by all workers of a test."""

    events: ClassVar[list[tuple[str, str]]]
    faults: ClassVar[dict[tuple[str, str], Callable[[], Any]]]
    changed: ClassVar[asyncio.Event]
    gates: ClassVar[defaultdict[tuple[str, str], asyncio.Event]]
    closed: ClassVar[set[tuple[str, str]]]

    @classmethod
    async def enter(cls, member_id: str, method: str) -> Any:
        cls.events.append((member_id, method))
        cls.changed.set()
        if (member_id, method) in cls.closed:
            await cls.gates[member_id, method].wait()
        return cls.faults.get((member_id, method), lambda: None)()

    @classmethod
    def close(cls, member_id: str, method: str) -> None:
        cls.closed.add((member_id, method))

    @classmethod
    def open(cls, member_id: str, method: str) -> None:
        cls.closed.discard((member_id, method))
        cls.gates[member_id, method].set()

    @classmethod
    def of(cls, member_id: str) -> list[str]:
        return [method for member, method in cls.events if member == member_id]

    @classmethod
    async def until(cls, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                cls.changed.clear()
                await cls.changed.wait()


@pytest.fixture(autouse=True)
def _fresh_script() -> None:
    Script.events, Script.faults, Script.closed = [], {}, set()
    Script.changed, Script.gates = asyncio.Event(), defaultdict(asyncio.Event)


class Scripted:
    """What the workers of these tests have in common."""

    member: Member

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def enter(self, method: str) -> Any:
        return await Script.enter(self.member.member_id, method)


class Trainer(Scripted, Worker):
    role = Role.ACTOR_TRAIN
    version = -1

    @register()
    async def snapshot(self, version: int) -> None:
        await self.enter(f"snapshot {version}")
        self.version = version

    @register()
    async def probe(self, token_ids: list[int]) -> list[float]:
        return await self.enter("probe") or logprobs_under(self.version)

    @register()
    async def upload(self) -> list[Bucket]:
        version = self.version
        await self.enter("upload")
        if self.member.rank:
            return []
        return [Bucket(f"v{version}/{number}", 10, "", ()) for number in range(2)]


class Generator(Scripted, Worker):
    role = Role.ACTOR_GEN
    prefetched: Manifest | None = None
    loaded = -1

    @register()
    async def prefetch(self, manifest: Manifest) -> None:
        await self.enter("prefetch")
        self.prefetched = manifest

    @register()
    async def say_that_it_leaves(self) -> None:
        self.member = msgspec.structs.replace(self.member, leaving=True)

    @register()
    async def suspend(self) -> None:
        await self.enter("suspend")

    @register()
    async def load(self, version: int) -> None:
        await self.enter("load")
        assert self.prefetched is not None
        assert self.prefetched.version == version
        self.loaded = version

    @register()
    async def resume(self) -> None:
        await self.enter("resume")

    @register()
    async def probe(self, token_ids: list[int]) -> list[float]:
        assert token_ids == PROBE
        found = await self.enter("probe")
        return logprobs_under(self.loaded) if found is None else found


@dataclass
class Collector:
    """Stands in for the weight store's garbage collection."""

    fault: WeightsError | None = None
    num_calls: int = 0

    async def collect(self) -> None:
        self.num_calls += 1
        if self.fault:
            raise self.fault


@dataclass
class Sync:
    """A running WeightSync and what it works on."""

    weights: WeightSync
    catalog: ManifestCatalog
    collector: Collector
    running: asyncio.Task[None]
    confirmed: list[int] = field(default_factory=list[int])

    async def publish(self, version: int) -> None:
        async with asyncio.timeout(5):
            await self.weights.publish(version)

    async def confirm(self, version: int) -> None:
        await self.publish(version)
        await self.weights.wait_confirmed(version, 5)

    async def failure(self) -> BaseException:
        await asyncio.wait({self.running}, timeout=5)
        with pytest.raises(ExceptionGroup) as failed:
            self.running.result()
        return failed.value.exceptions[0]


SyncWith = Callable[..., AbstractAsyncContextManager[Sync]]


@pytest.fixture
def sync_with(bus: Bus, view: MemberView, start_worker: Start) -> SyncWith:
    """``async with sync_with("gen-0", "gen-1", num_trainers=2)``: a WeightSync with these generation workers."""

    @asynccontextmanager
    async def opened(
        *generators: str,
        num_trainers: int = 1,
        dtype: str = "float32",
        attempt: int = 1,
        fault: WeightsError | None = None,
        transfer: WeightTransfer = "background",
        loading: Callable[[int], AbstractAsyncContextManager[None]] = at_any_time,
    ) -> AsyncIterator[Sync]:
        for rank in range(num_trainers):
            start_worker(Trainer, f"train-{rank}", rank=rank, group_rank=rank)
        for member_id in generators:
            start_worker(Generator, member_id)
        await view.wait_for(Role.ACTOR_TRAIN, num_trainers, 10)
        await view.wait_for(Role.ACTOR_GEN, len(generators), 10)
        catalog = ManifestCatalog(bus.js, await bus.bucket(WEIGHTS_BUCKET))
        collector, confirmed = Collector(fault), list[int]()
        weights = WeightSync(
            bus=bus,
            trainers=Cluster(Trainer, bus, view),  # pyright: ignore[reportArgumentType]
            generators=Cluster(Generator, bus, view),  # pyright: ignore[reportArgumentType]
            view=view,
            catalog=catalog,
            collector=collector,  # pyright: ignore[reportArgumentType]
            attempt=attempt,
            dtype=dtype,
            probe_token_ids=PROBE,
            on_confirmed=confirmed.append,
            on_published=lambda version, digest: None,
            transfer=transfer,
            loading=loading,
        )
        running = asyncio.create_task(weights.run())
        yield Sync(weights, catalog, collector, running, confirmed)
        running.cancel()
        await asyncio.wait({running})

    return opened


def failing(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


async def test_a_version_goes_from_the_trainer_to_every_worker_step_by_step(sync_with: SyncWith):
    async with sync_with("gen-0", "gen-1", num_trainers=2) as sync:
        await sync.confirm(0)
        for rank in range(2):
            assert Script.of(f"train-{rank}") == ["snapshot 0", "probe", "upload"]
        assert Script.of("gen-0") == Script.of("gen-1") == STEPS
        order = [method for member, method in Script.events if member.startswith("gen")]
        assert order == [step for step in STEPS for _ in range(2)]
        manifest = await sync.catalog.latest()
        assert manifest is not None
        assert (manifest.version, manifest.attempt) == (0, 1)
        assert [bucket.key for bucket in manifest.buckets] == ["v0/0", "v0/1"]
        assert np.frombuffer(manifest.probe_token_ids, np.int32).tolist() == PROBE
        assert np.frombuffer(manifest.probe_logprobs, np.float32).tolist() == pytest.approx(logprobs_under(0))
        assert (sync.confirmed, sync.weights.published_version, sync.weights.confirmed_version) == ([0], 0, 0)
        assert sync.weights.probe_gap_max < 1e-6


async def test_a_blocking_transfer_suspends_generation_before_anything_is_fetched(sync_with: SyncWith):
    async with sync_with("gen-0", "gen-1", transfer="blocking") as sync:
        await sync.confirm(0)
        order = [method for member, method in Script.events if member.startswith("gen")]
        assert order == [step for step in ("suspend", "prefetch", "load", "resume", "probe") for _ in range(2)]


@pytest.mark.parametrize("transfer", ["background", "blocking"])
async def test_a_version_is_loaded_when_the_rollout_lets_it_and_confirmed_before_that_goes_on(
    sync_with: SyncWith, transfer: str
):
    played, went_on = asyncio.Event(), asyncio.Event()
    seen: list[tuple[int, list[str], list[int]]] = []

    @asynccontextmanager
    async def loading(version: int) -> AsyncIterator[None]:
        seen.append((version, Script.of("gen-0"), list(sync.confirmed)))
        await played.wait()
        yield
        seen.append((version, Script.of("gen-0"), list(sync.confirmed)))
        went_on.set()

    async with sync_with("gen-0", transfer=transfer, loading=loading) as sync:
        await sync.publish(0)
        await Script.until(lambda: Script.of("train-0")[-1] == "upload")
        await sync.publish(1)
        played.set()
        await went_on.wait()
        before = ["prefetch"] if transfer == "background" else []
        assert seen[0] == (0, before, [])
        assert (seen[1][0], seen[1][1][-1], seen[1][2]) == (0, "probe", [0])
        await sync.weights.wait_confirmed(1, 5)


async def test_versions_follow_one_another_and_each_is_confirmed_once(sync_with: SyncWith):
    async with sync_with("gen-0", "gen-1") as sync:
        for version in range(4):
            await sync.confirm(version)
        assert sync.confirmed == [0, 1, 2, 3]
        assert Script.of("gen-0") == Script.of("gen-1") == STEPS * 4
        assert sync.collector.num_calls >= 4


async def test_a_slow_worker_takes_the_newest_version_and_not_each_one_between(sync_with: SyncWith):
    Script.close("gen-0", "prefetch")
    async with sync_with("gen-0") as sync:
        await sync.publish(0)
        await Script.until(lambda: Script.of("gen-0") == ["prefetch"])
        for version in (1, 2, 3):
            await sync.publish(version)
        await Script.until(lambda: Script.of("train-0")[-1] == "upload" and "snapshot 3" in Script.of("train-0"))
        Script.open("gen-0", "prefetch")
        await sync.weights.wait_confirmed(3, 5)
        assert sync.confirmed == [0, 3]


async def test_publishing_waits_for_the_upload_before_and_training_does_not(sync_with: SyncWith):
    Script.close("train-0", "upload")
    async with sync_with("gen-0") as sync:
        await sync.publish(0)
        await Script.until(lambda: "upload" in Script.of("train-0"))
        next_one = asyncio.create_task(sync.publish(1))
        assert (await asyncio.wait({next_one}, timeout=0.2))[1] == {next_one}
        assert Script.of("train-0") == ["snapshot 0", "probe", "upload"]
        assert await sync.catalog.latest() is None
        Script.open("train-0", "upload")
        await next_one
        await sync.weights.wait_confirmed(1, 5)


@pytest.mark.parametrize("step", STEPS)
async def test_nothing_is_confirmed_before_every_live_worker_is_there(sync_with: SyncWith, step: str):
    Script.close("gen-1", step)
    async with sync_with("gen-0", "gen-1") as sync:
        await sync.publish(0)
        await Script.until(lambda: Script.of("gen-1") == STEPS[: STEPS.index(step) + 1])
        with pytest.raises(WaitTimeout, match=r"version 0 to be confirmed from \['gen-0', 'gen-1'\]"):
            await sync.weights.wait_confirmed(0, 0.2)
        assert sync.confirmed == []
        Script.open("gen-1", step)
        await sync.weights.wait_confirmed(0, 5)


WRONG_PROBES = {
    "off": [-1.0, -1.0, -1.0],
    "one token off": [*logprobs_under(0)[:2], logprobs_under(0)[2] + 0.01],
    "not a number": [math.nan] * 3,
    "one not a number": [*logprobs_under(0)[:2], math.nan],
    "infinite": [-math.inf] * 3,
    "too short": logprobs_under(0)[:1],
    "too long": [*logprobs_under(0), -1.0],
    "empty": [],
}


@pytest.mark.parametrize("probe", WRONG_PROBES)
async def test_a_worker_whose_probe_is_off_is_expelled_and_never_counts(
    sync_with: SyncWith, view: MemberView, probe: str
):
    Script.faults["gen-1", "probe"] = lambda: WRONG_PROBES[probe]
    async with sync_with("gen-0", "gen-1") as sync:
        await sync.confirm(0)
        assert [member.member_id for member in view.of_role(Role.ACTOR_GEN)] == ["gen-0"]
        assert sync.weights.probe_gap_max > 1e-3
        assert not sync.running.done()


async def test_a_version_that_no_worker_serves_rightly_is_not_confirmed(sync_with: SyncWith):
    Script.faults["gen-0", "probe"] = lambda: [math.nan] * 3
    async with sync_with("gen-0") as sync:
        await sync.publish(0)
        with pytest.raises(WaitTimeout, match="version 0 to be confirmed"):
            await sync.weights.wait_confirmed(0, 0.5)
        assert sync.confirmed == []


@pytest.mark.parametrize(("dtype", "gap"), [("float32", 5e-4), ("bfloat16", 0.2)])
async def test_a_probe_within_the_precision_of_the_weights_is_right(sync_with: SyncWith, dtype: str, gap: float):
    Script.faults["gen-0", "probe"] = lambda: [value + gap for value in logprobs_under(0)]
    async with sync_with("gen-0", dtype=dtype) as sync:
        await sync.confirm(0)
        assert sync.weights.probe_gap_max == pytest.approx(gap, rel=1e-2)


@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_that_fails_a_step_is_expelled_and_does_not_block_the_rest(
    sync_with: SyncWith, view: MemberView, step: str
):
    Script.faults["gen-1", step] = failing(RuntimeError("no memory"))
    async with sync_with("gen-0", "gen-1", "gen-2") as sync:
        await sync.confirm(0)
        assert [member.member_id for member in view.of_role(Role.ACTOR_GEN)] == ["gen-0", "gen-2"]
        assert Script.of("gen-1") == STEPS[: STEPS.index(step) + 1]
        assert Script.of("gen-0") == STEPS


@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_that_dies_in_the_middle_does_not_block_the_rest(
    sync_with: SyncWith, start_worker: Start, view: MemberView, step: str
):
    Script.close("gen-1", step)
    async with sync_with("gen-0") as sync:
        dying = start_worker(Generator, "gen-1")
        await view.wait_for(Role.ACTOR_GEN, 2, 10)
        await sync.publish(0)
        await Script.until(lambda: step in Script.of("gen-1"))
        dying.cancel()
        await sync.weights.wait_confirmed(0, 5)
        assert Script.of("gen-0") == STEPS


async def test_a_worker_that_was_started_again_in_the_middle_is_brought_up_to_date_and_not_expelled(
    sync_with: SyncWith, start_worker: Start, view: MemberView
):
    Script.close("gen-1", "load")
    async with sync_with("gen-0", "gen-1") as sync:
        await sync.publish(0)
        await Script.until(lambda: "load" in Script.of("gen-1"))
        ends: list[str] = []
        view.listen(lambda before, after: ends.append("gone") if after is None else None)
        Script.closed.clear()
        start_worker(Generator, "gen-1")
        await sync.weights.wait_confirmed(0, 5)
        assert Script.of("gen-1")[-1] == "probe"
        assert ends == []


async def says_that_it_leaves(bus: Bus, view: MemberView, member_id: str) -> None:
    await call(bus, member_id, "say_that_it_leaves", encode(()), deadline_s=10)
    await view.wait_until(lambda: view.all()[member_id].leaving, 10)


async def test_a_worker_that_leaves_is_not_updated_any_more_and_holds_nothing_up(
    sync_with: SyncWith, bus: Bus, view: MemberView
):
    async with sync_with("gen-0", "gen-1") as sync:
        await sync.confirm(0)
        await says_that_it_leaves(bus, view, "gen-1")
        await sync.confirm(1)
        assert Script.of("gen-0") == STEPS * 2
        assert Script.of("gen-1") == STEPS


async def test_a_worker_that_begins_to_leave_before_it_was_updated_does_not_hold_the_confirmation_up(
    sync_with: SyncWith, start_worker: Start, bus: Bus, view: MemberView, caplog: pytest.LogCaptureFixture
):
    Script.close("gen-1", "prefetch")
    async with sync_with("gen-0") as sync:
        leaving = start_worker(Generator, "gen-1", guest=True)
        await view.wait_for(Role.ACTOR_GEN, 2, 10)
        await sync.publish(0)
        await Script.until(lambda: Script.of("gen-1") == ["prefetch"])
        await says_that_it_leaves(bus, view, "gen-1")
        leaving.cancel()
        await sync.weights.wait_confirmed(0, 5)
        assert Script.of("gen-0") == STEPS
        assert "gen-1 ended during an update" in caplog.text
        assert "expelled" not in caplog.text


async def test_a_worker_that_joins_in_the_middle_of_an_update_gets_it_next(
    sync_with: SyncWith, start_worker: Start, view: MemberView
):
    Script.close("gen-0", "load")
    async with sync_with("gen-0") as sync:
        await sync.publish(0)
        await Script.until(lambda: "load" in Script.of("gen-0"))
        start_worker(Generator, "gen-1", guest=True)
        await view.wait_for(Role.ACTOR_GEN, 2, 10)
        Script.open("gen-0", "load")
        await sync.weights.wait_confirmed(0, 5)
        assert Script.of("gen-1") == Script.of("gen-0") == STEPS


async def test_a_worker_that_joins_late_is_brought_up_to_date(
    sync_with: SyncWith, start_worker: Start, view: MemberView
):
    async with sync_with("gen-0") as sync:
        await sync.confirm(0)
        start_worker(Generator, "gen-1")
        await Script.until(lambda: Script.of("gen-1") == STEPS)
        assert Script.of("gen-0") == STEPS
        await sync.confirm(1)
        assert Script.of("gen-1") == STEPS * 2
        assert sync.confirmed == [0, 1]


async def test_workers_that_join_late_do_not_take_a_confirmed_version_back(
    sync_with: SyncWith, start_worker: Start, view: MemberView
):
    async with sync_with("gen-0") as sync:
        await sync.confirm(5)
        for number in (1, 2):
            Script.close(f"gen-{number}", "prefetch")
            start_worker(Generator, f"gen-{number}")
            await view.wait_for(Role.ACTOR_GEN, 1 + number, 10)
            await Script.until(lambda: Script.of("gen-1") == ["prefetch"])
        Script.open("gen-1", "prefetch")
        await Script.until(lambda: Script.of("gen-2") == ["prefetch"])
        assert Script.of("gen-1") == STEPS
        assert (sync.weights.confirmed_version, sync.confirmed) == (5, [5])
        await sync.weights.wait_confirmed(5, 1)


async def test_versions_wait_for_the_first_worker_to_join(sync_with: SyncWith, start_worker: Start):
    async with sync_with() as sync:
        await sync.publish(0)
        with pytest.raises(WaitTimeout, match=r"from \[\]"):
            await sync.weights.wait_confirmed(0, 0.2)
        start_worker(Generator, "gen-0")
        await sync.weights.wait_confirmed(0, 5)


async def test_when_all_workers_were_lost_those_that_come_back_are_confirmed(
    sync_with: SyncWith, start_worker: Start, bus: Bus, view: MemberView
):
    async with sync_with("gen-0") as sync:
        await sync.confirm(0)
        await seen(view, "gen-0", None, expel(bus, "gen-0"))
        await sync.publish(1)
        start_worker(Generator, "gen-1")
        await sync.weights.wait_confirmed(1, 5)
        assert sync.confirmed == [0, 1]


async def test_a_trainer_whose_weights_went_wrong_publishes_nothing(sync_with: SyncWith):
    Script.faults["train-0", "probe"] = lambda: [-1.0, math.nan, -1.0]
    async with sync_with("gen-0") as sync:
        with pytest.raises(WeightsError, match=r"version 0: .* not finite"):
            await sync.publish(0)
        assert await sync.catalog.latest() is None
        assert Script.of("gen-0") == []


async def test_an_upload_that_fails_ends_the_service(sync_with: SyncWith):
    Script.faults["train-0", "upload"] = failing(RuntimeError("the store is full"))
    async with sync_with("gen-0") as sync:
        await sync.publish(0)
        failure = await sync.failure()
        assert isinstance(failure, RemoteError)
        assert "the store is full" in str(failure)
        assert sync.weights.published_version == -1


async def test_a_store_that_stays_full_is_not_waited_for_for_ever(
    sync_with: SyncWith, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(weight_sync, "_ROOM_DEADLINE_S", 0.3)
    monkeypatch.setattr(weight_sync, "_ROOM_AGAIN_S", 0.05)
    Script.faults["train-0", "upload"] = failing(StoreFullError("no room"))
    async with sync_with("gen-0") as sync:
        await sync.publish(0)
        assert "no room" in str(await sync.failure())
        assert sync.collector.num_calls >= 1
    assert "trying again after collecting old versions" in caplog.text


async def test_a_worker_that_hangs_in_an_update_is_expelled_at_the_deadline(
    sync_with: SyncWith, caplog: pytest.LogCaptureFixture
):
    async with sync_with("gen-0", "gen-1") as sync:
        sync.weights._generators._deadline_s = 0.5  # pyright: ignore[reportPrivateUsage]
        Script.close("gen-0", "suspend")
        await sync.publish(0)
        await sync.weights.wait_confirmed(0, 30)
        assert Script.of("gen-1") == STEPS
    assert "gen-0 is expelled: gen-0.suspend: no answer within 0.5 s" in caplog.text


async def test_an_upload_that_a_store_refuses_while_it_is_started_again_is_made_again(sync_with: SyncWith):
    failures = iter([WeightsError("the master does not answer"), None])

    def fail_once() -> None:
        if error := next(failures):
            raise error

    Script.faults["train-0", "upload"] = fail_once
    async with sync_with("gen-0") as sync:
        await sync.confirm(0)
        assert Script.of("train-0").count("upload") == 2


async def test_a_store_that_was_started_again_gets_the_newest_version_back_once(sync_with: SyncWith, bus: Bus):
    async with sync_with("gen-0") as sync:
        await sync.confirm(0)
        manifest = await sync.catalog.latest()
        for number in (1, 1, 1):
            await bus.nc.publish(STORE_LOST, encode(StoreLoss(number)))
        await Script.until(lambda: Script.of("train-0").count("upload") == 2)
        await sync.confirm(1)
        assert Script.of("train-0").count("upload") == 3
        assert await sync.catalog.read(Publication(1, 0)) == manifest
        assert Script.of("gen-0").count("prefetch") == 2


@pytest.mark.parametrize(
    ("transfer", "steps"),
    [
        ("background", ["prefetch", *STEPS]),
        ("blocking", ["suspend", "prefetch", "resume", "suspend", "prefetch", "load", "resume", "probe"]),
    ],
)
async def test_a_worker_whose_prefetch_failed_of_a_lost_store_goes_on_and_takes_the_version_when_it_is_back(
    sync_with: SyncWith, bus: Bus, view: MemberView, transfer: str, steps: list[str]
):
    faults = iter([MissingWeightsError("the store has lost it")])

    def fail_once() -> None:
        for fault in faults:
            raise fault

    Script.faults["gen-0", "prefetch"] = fail_once
    async with sync_with("gen-0", transfer=transfer) as sync:
        (before,) = view.of_role(Role.ACTOR_GEN)
        Script.close("gen-0", "prefetch")
        await sync.publish(0)
        await Script.until(lambda: "prefetch" in Script.of("gen-0"))
        await bus.nc.publish(STORE_LOST, encode(StoreLoss(1)))
        await Script.until(lambda: Script.of("train-0").count("upload") == 2)
        Script.open("gen-0", "prefetch")
        await sync.weights.wait_confirmed(0, 5)
        assert Script.of("gen-0") == steps
        assert view.of_role(Role.ACTOR_GEN)[0].incarnation == before.incarnation


async def test_a_version_that_the_catalogue_refuses_ends_the_service(sync_with: SyncWith):
    async with sync_with("gen-0") as sync:
        await sync.confirm(3)
        await sync.publish(2)
        assert "version 2 is not newer than version 3" in str(await sync.failure())


async def test_old_versions_that_cannot_be_collected_are_no_reason_to_end(sync_with: SyncWith):
    async with sync_with("gen-0", fault=WeightsError("the store does not answer")) as sync:
        await sync.confirm(0)
        await sync.confirm(1)
        assert not sync.running.done()


async def test_time_spent_is_told_by_what_generation_felt_of_it(sync_with: SyncWith):
    for step in ("prefetch", "load"):
        Script.close("gen-0", step)
    async with sync_with("gen-0") as sync:
        await sync.publish(0)
        for step, seconds in (("prefetch", 0.3), ("load", 0.05)):
            await Script.until(lambda step=step: step in Script.of("gen-0"))
            await asyncio.sleep(seconds)
            Script.open("gen-0", step)
        await sync.weights.wait_confirmed(0, 5)
        assert sync.weights.seconds["prefetch"] >= 0.3
        assert 0.05 <= sync.weights.seconds["suspended"] < 0.3
