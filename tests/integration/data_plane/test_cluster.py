"""Calls to a role's workers, over the real bus; the workers live in this process."""

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView, expel
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.data_plane import cluster as module
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.declarations import Mode, Serverless, hw_mapping, register, register_serverless
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.errors import NotReachableError, RemoteError, WorkerDeclarationError
from rollart_hpc.types import Float32Array, Role

Start = Callable[..., asyncio.Task[None]]
AT_ONCE_S = 5


class Share(msgspec.Struct, frozen=True):
    values: Float32Array
    names: dict[str, list[int]] = {}


class Sum(msgspec.Struct, frozen=True):
    worker: str
    total: float
    share: Share


class Scripted(Worker):
    role = Role.ACTOR_TRAIN
    in_call = asyncio.Event()
    ended: list[str]

    async def run(self) -> None:
        await asyncio.Event().wait()

    @register()
    async def name(self) -> str:
        return self.member.member_id

    @register(Mode.RANK_ZERO)
    def name_of_first(self) -> str:
        return self.member.member_id

    @register(Mode.SPLIT_DP)
    async def add(self, share: Share, scale: float) -> Sum:
        return Sum(self.member.member_id, float(share.values.sum()) * scale, share)

    @register()
    async def fail_on(self, member_id: str) -> str:
        if self.member.member_id == member_id:
            raise ValueError("out of luck")
        await asyncio.sleep(0.05)
        self.ended.append(self.member.member_id)
        return "done"

    @register()
    async def hang_without(self, member_id: str) -> None:
        if self.member.member_id == member_id:
            raise ValueError("out of luck")
        await asyncio.Event().wait()

    @register()
    async def power(self, base: int, exponent: int = 2) -> int:
        return base**exponent

    @register()
    async def nothing(self) -> None:
        return None

    @register()
    async def answer_of(self, size_bytes: int) -> bytes:
        return bytes(size_bytes)

    @register()
    async def hang(self) -> None:
        self.in_call.set()
        await asyncio.Event().wait()

    @register()
    async def take_version(self, version: int) -> None:
        self.member = msgspec.structs.replace(self.member, version=version)

    @hw_mapping(hw_affinity={"FrozenLake": "H800", "default": "H20"})
    async def mapped(self, tag_name: str = "default") -> str:
        return f"{self.member.member_id}: {tag_name}"

    @register_serverless(attribute="reward_proxy", serverless_url="http://127.0.0.1:9/score")
    async def scored(self, trajectory: list[str]) -> float:
        return (await self.reward_proxy({"trajectory": trajectory}))["reward"]

    async def undeclared(self) -> str:
        return "secret"


@pytest.fixture(autouse=True)
def _fresh_class() -> None:
    Scripted.in_call, Scripted.ended = asyncio.Event(), []


@pytest.fixture
async def cluster(bus: Bus, view: MemberView, start_worker: Start) -> Cluster[Scripted]:
    """Three workers: two peers that share a batch and one with another; the last rank joins first."""
    made = Cluster(Scripted, bus, view)
    for rank, group_rank in ((2, 1), (1, 0), (0, 0)):
        start_worker(Scripted, f"w-{rank}", rank=rank, group_rank=group_rank)
        await view.wait_for(Role.ACTOR_TRAIN, 3 - rank, 10)
    return made


async def test_every_worker_is_called_and_results_come_in_rank_order(cluster: Cluster[Scripted]):
    assert await cluster.call(Scripted.name) == ["w-0", "w-1", "w-2"]


async def test_rank_zero_alone_is_called(cluster: Cluster[Scripted]):
    assert await cluster.call(Scripted.name_of_first) == ["w-0"]  # pyright: ignore


async def test_the_attribute_form_is_the_same_call(cluster: Cluster[Scripted]):
    assert await cluster.name() == ["w-0", "w-1", "w-2"]
    assert await cluster.name_of_first() == ["w-0"]
    assert await cluster.power(3, 3) == [27, 27, 27]


async def test_each_data_parallel_rank_gets_its_share_and_peers_the_same(cluster: Cluster[Scripted]):
    shares = [Share(np.array([1, 2], np.float32)), Share(np.array([[5.5]], np.float32), {"a": [1]})]
    results = await cluster.add(shares, 2.0)
    assert [(one.worker, one.total) for one in results] == [("w-0", 6.0), ("w-1", 6.0), ("w-2", 11.0)]
    assert results[2].share.values.dtype == np.float32
    assert results[2].share.values.shape == (1, 1)
    assert results[2].share.names == {"a": [1]}


@pytest.mark.parametrize(
    "shares",
    [[], ["one"], ["one", "two", "three"], "ab", None],
    ids=["empty", "too few", "one would be lost", "text", "nothing"],
)
async def test_shares_that_do_not_fit_the_ranks_are_refused_before_anybody_is_called(
    cluster: Cluster[Scripted], shares: object
):
    with pytest.raises(
        WorkerDeclarationError, match=r"Scripted\.add: split_dp takes a list with one item per .*, here \[0, 1\]; got"
    ):
        await cluster.add(shares, 1.0)


async def test_the_share_of_a_rank_that_is_gone_is_not_lost_silently(
    cluster: Cluster[Scripted], view: MemberView, start_worker: Start, bus: Bus
):
    start_worker(Scripted, "w-3", rank=3, group_rank=2)
    await view.wait_for(Role.ACTOR_TRAIN, 4, 10)
    gone = asyncio.Event()
    view.listen(lambda before, after: gone.set())
    await expel(bus, "w-2")
    await asyncio.wait_for(gone.wait(), AT_ONCE_S)
    with pytest.raises(WorkerDeclarationError, match=r"here \[0, 2\]; got 3 items"):
        await cluster.add([Share(np.zeros(1, np.float32))] * 3, 1.0)


async def test_nothing_is_a_result_too(cluster: Cluster[Scripted]):
    assert await cluster.call(Scripted.nothing) == [None, None, None]


async def test_one_worker_alone_can_be_called(cluster: Cluster[Scripted]):
    assert await cluster.call_one("w-1", Scripted.power, 2, 5) == 32


async def test_a_parameter_with_a_default_may_be_left_out(cluster: Cluster[Scripted]):
    assert await cluster.call(Scripted.power, 3) == [9, 9, 9]


async def test_what_a_method_raises_comes_when_all_others_have_ended(cluster: Cluster[Scripted]):
    with pytest.raises(RemoteError, match=r"w-1\.fail_on: ValueError: out of luck"):
        await cluster.call(Scripted.fail_on, "w-1")
    assert sorted(Scripted.ended) == ["w-0", "w-2"]
    assert await cluster.call(Scripted.name) == ["w-0", "w-1", "w-2"]


async def test_a_rank_that_raises_alone_is_told_though_the_others_wait_for_it_in_a_collective(
    cluster: Cluster[Scripted], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_PEERS_S", 0.2)
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(RemoteError, match=r"w-1\.hang_without: ValueError: out of luck"):
            await cluster.call(Scripted.hang_without, "w-1")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((), WorkerDeclarationError, "power: missing a required argument: 'base'"),
        ((1, 2, 3), WorkerDeclarationError, "power: too many positional arguments"),
        (("three",), RemoteError, "int"),
        ((1.5,), RemoteError, "int"),
        ((None,), RemoteError, "int"),
    ],
    ids=["too few", "too many", "text", "fraction", "nothing"],
)
async def test_wrong_arguments_are_an_error_of_the_call_and_the_worker_goes_on(
    cluster: Cluster[Scripted], arguments: tuple[object, ...], error: type[Exception], said: str
):
    with pytest.raises(error, match=said):
        await cluster.power(*arguments)
    assert await cluster.power(2) == [4, 4, 4]


async def test_keyword_arguments_travel_in_the_method_s_order(cluster: Cluster[Scripted]):
    assert set(await cluster.call(Scripted.power, 3, exponent=3)) == {27}
    assert await cluster.call_one("w-0", Scripted.power, exponent=4, base=2) == 16
    with pytest.raises(WorkerDeclarationError, match="unexpected keyword argument 'exp'"):
        await cluster.call(Scripted.power, 3, exp=3)  # pyright: ignore


async def test_what_is_not_declared_is_not_called(cluster: Cluster[Scripted]):
    for method in (Scripted.undeclared, Scripted.run):
        with pytest.raises(WorkerDeclarationError, match=r"expected a method with @register"):
            await cluster.call(method)  # pyright: ignore
        with pytest.raises(WorkerDeclarationError, match=r"expected a method with @register"):
            await cluster.call_one("w-0", method)  # pyright: ignore
    with pytest.raises(AttributeError, match=r"declares no method 'undeclared'; it has \['add', .*'take_version'\]"):
        cluster.undeclared  # noqa: B018


async def test_a_mapped_method_runs_on_the_hardware_of_its_tag_and_elsewhere_when_there_is_none(
    bus: Bus, view: MemberView, start_worker: Start
):
    cluster = Cluster(Scripted, bus, view)
    start_worker(Scripted, "fast", rank=0, hardware="H800")
    wide = start_worker(Scripted, "wide", rank=1, hardware="H20")
    await view.wait_for(Role.ACTOR_TRAIN, 2, 10)
    for _ in range(3):
        assert await cluster.mapped(tag_name="FrozenLake") == ["fast: FrozenLake"]
        assert await cluster.mapped("other") == ["wide: other"]
        assert await cluster.call(Scripted.mapped) == ["wide: default"]
    wide.cancel()
    gone = asyncio.Event()
    view.listen(lambda before, after: gone.set() if after is None else None)
    await asyncio.wait_for(gone.wait(), AT_ONCE_S)
    assert await cluster.mapped("other") == ["fast: other"]


async def test_a_serverless_method_reaches_its_endpoint_through_the_declared_attribute(
    bus: Bus, view: MemberView, start_worker: Start, monkeypatch: pytest.MonkeyPatch
):
    asked: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"reward": 0.5})

    app = web.Application()
    app.router.add_post("/score", answer)
    async with TestServer(app) as server:
        declaration = Serverless("reward_proxy", str(server.make_url("/score")))
        monkeypatch.setattr(Scripted.scored, "__rollart_declaration__", declaration)
        cluster = Cluster(Scripted, bus, view)
        start_worker(Scripted, "w", rank=0)
        await view.wait_for(Role.ACTOR_TRAIN, 1, 10)
        assert await cluster.scored(["a", "b"]) == [0.5]
    assert asked == [{"trajectory": ["a", "b"]}]
    with pytest.raises(RemoteError, match="RewardFault: unreachable"):
        await cluster.scored([])


async def test_a_call_that_another_program_makes_up_is_refused_by_the_worker(cluster: Cluster[Scripted], bus: Bus):
    from rollart_hpc.bus import codec
    from rollart_hpc.bus.calls import call

    for name in ("undeclared", "close", "__init__", "member", "absent"):
        with pytest.raises(RemoteError, match=f"declares no method '{name}'"):
            await call(bus, "w-0", name, codec.encode(()), deadline_s=AT_ONCE_S)


async def test_a_result_too_large_to_travel_is_an_error_and_the_worker_goes_on(cluster: Cluster[Scripted]):
    with pytest.raises(RemoteError, match=f"at most {MAX_PAYLOAD_BYTES} travel"):
        await cluster.call_one("w-0", Scripted.answer_of, MAX_PAYLOAD_BYTES)
    assert len(await cluster.call_one("w-0", Scripted.answer_of, 1 << 20)) == 1 << 20


async def test_a_worker_that_ends_during_a_call_is_told_at_once(bus: Bus, view: MemberView, start_worker: Start):
    cluster = Cluster(Scripted, bus, view)
    worker = start_worker(Scripted, "w-0")
    await view.wait_for(Role.ACTOR_TRAIN, 1, 10)
    calling = asyncio.create_task(cluster.call(Scripted.hang))
    await asyncio.wait_for(Scripted.in_call.wait(), AT_ONCE_S)
    worker.cancel()
    with pytest.raises(NotReachableError, match=r"w-0\.hang: the worker ended before it answered"):
        await asyncio.wait_for(calling, AT_ONCE_S)
    with pytest.raises(NotReachableError, match=r"no actor_train worker is there to run Scripted\.hang"):
        await cluster.call(Scripted.hang)


async def test_a_worker_that_is_expelled_during_a_call_does_not_hold_it_up(
    cluster: Cluster[Scripted], bus: Bus, view: MemberView
):
    calling = asyncio.create_task(cluster.call_one("w-1", Scripted.hang))
    await asyncio.wait_for(Scripted.in_call.wait(), AT_ONCE_S)
    await expel(bus, "w-1")
    with pytest.raises(NotReachableError, match="ended before it answered"):
        await asyncio.wait_for(calling, AT_ONCE_S)
    assert await cluster.call(Scripted.name) == ["w-0", "w-2"]


async def test_a_worker_that_is_started_again_does_not_answer_for_the_one_before(
    cluster: Cluster[Scripted], start_worker: Start
):
    calling = asyncio.create_task(cluster.call_one("w-1", Scripted.hang))
    await asyncio.wait_for(Scripted.in_call.wait(), AT_ONCE_S)
    start_worker(Scripted, "w-1", rank=1)
    with pytest.raises(NotReachableError, match="ended before it answered"):
        await asyncio.wait_for(calling, AT_ONCE_S)


async def test_a_worker_that_joins_later_is_called_from_then_on(
    cluster: Cluster[Scripted], view: MemberView, start_worker: Start
):
    start_worker(Scripted, "w-3", rank=3, group_rank=2)
    await view.wait_for(Role.ACTOR_TRAIN, 4, 10)
    assert await cluster.call(Scripted.name) == ["w-0", "w-1", "w-2", "w-3"]


async def test_what_a_call_changes_of_a_member_is_seen_by_everyone(cluster: Cluster[Scripted], view: MemberView):
    changed = asyncio.Event()
    view.listen(lambda before, after: changed.set())
    await cluster.call_one("w-2", Scripted.take_version, 7)
    await asyncio.wait_for(changed.wait(), AT_ONCE_S)
    assert [member.version for member in cluster.members()] == [-1, -1, 7]


async def test_a_call_that_nobody_waits_for_any_more_leaves_nothing_behind(cluster: Cluster[Scripted]):
    calling = asyncio.create_task(cluster.call(Scripted.hang))
    await asyncio.wait_for(Scripted.in_call.wait(), AT_ONCE_S)
    calling.cancel()
    await asyncio.wait({calling})
    assert not any(cluster._in_flight.values())  # pyright: ignore
    assert await cluster.call(Scripted.name) == ["w-0", "w-1", "w-2"]
