"""Plain methods of workers, called over the real bus; the workers live in this process."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.declarations import register, register_serverless
from rollart_hpc.data_plane.plain_methods import get
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.errors import RemoteError
from rollart_hpc.types import Role
from tests.builders import run_config

if TYPE_CHECKING:
    from decimal import Decimal

Start = Callable[..., asyncio.Task[None]]
AT_ONCE_S = 10
DECLARED = "fc://score"


class Plain(Worker):
    role = Role.REWARD
    blocked: threading.Event
    free: threading.Event

    async def run(self) -> None:
        await asyncio.Event().wait()

    @register()
    def block(self) -> bool:
        self.blocked.set()
        return self.free.wait(AT_ONCE_S)

    @register()
    async def unblock(self) -> None:
        self.free.set()

    @register_serverless("proxy", DECLARED)
    def score(self, prompt: str) -> object:
        return get(self.proxy(prompt))

    @register_serverless("proxy", DECLARED)
    async def score_awaiting(self, prompt: str) -> object:
        return await self.proxy(prompt)

    @register_serverless("proxy", DECLARED)
    def score_later(self, prompt: str) -> object:
        return self.proxy(prompt)

    @register()
    async def get_where_await_is_due(self, prompt: str) -> object:
        return get(self.proxy(prompt))

    @register()
    def double(self, values: torch.Tensor) -> torch.Tensor:
        values *= 2
        return values

    @register()
    def untyped(self, values, scale=1.0):
        return [type(values).__name__, values * scale]

    @register()
    def typed(self, values: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
        return values

    @register()
    async def of_a_type_that_is_not_there(self, value: "Decimal") -> None: ...


class Overriding(Plain):
    async def untyped(self, values, scale=1.0):
        return ["overridden", await asyncio.to_thread(super().untyped, values, scale)]

    def typed(self, mine, others: list) -> str:
        return f"{type(mine).__name__} {type(others[0]).__name__}"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async def score(request: web.Request) -> web.Response:
        return web.json_response({"asked": await request.json()})

    app = web.Application()
    app.router.add_post("/score", score)
    async with TestServer(app) as server:
        yield str(server.make_url("/score"))


@pytest.fixture
async def cluster(
    bus: Bus, view: MemberView, start_worker: Start, url: str, monkeypatch: pytest.MonkeyPatch
) -> Cluster[Any]:
    Plain.blocked, Plain.free = threading.Event(), threading.Event()
    config = run_config().model_copy(update={"serverless": {DECLARED: url}})
    monkeypatch.setattr("rollart_hpc.data_plane.worker.Attempt.run_config", lambda self: config)
    start_worker(Plain, "plain-0")
    await view.wait_for(Role.REWARD, 1, AT_ONCE_S)
    return Cluster(Plain, bus, view)


async def test_a_plain_method_that_blocks_does_not_hold_up_its_worker(cluster: Cluster[Any]):
    blocking = asyncio.create_task(cluster.block())
    assert await asyncio.to_thread(Plain.blocked.wait, AT_ONCE_S)
    await asyncio.wait_for(cluster.unblock(), AT_ONCE_S)
    assert await blocking == [True]


async def test_as_many_plain_methods_block_as_are_called(cluster: Cluster[Any]):
    blocking = [asyncio.create_task(cluster.block()) for _ in range(50)]
    await asyncio.to_thread(Plain.blocked.wait, AT_ONCE_S)
    while threading.active_count() < 50:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await cluster.unblock()
    assert await asyncio.gather(*blocking) == [[True]] * 50


@pytest.mark.parametrize("method", ["score", "score_awaiting", "score_later"])
async def test_a_serverless_function_answers_plain_and_async_methods(cluster: Cluster[Any], method: str):
    call: Callable[[str], Coroutine[Any, Any, Any]] = getattr(cluster, method)
    assert await call("prompt") == [{"asked": "prompt"}]


async def test_get_in_an_async_method_is_an_error_of_the_call(cluster: Cluster[Any]):
    with pytest.raises(RemoteError, match=r"WorkerDeclarationError: .*here await the value instead of get"):
        await cluster.get_where_await_is_due("prompt")


async def test_tensors_travel_both_ways(cluster: Cluster[Any]):
    (result,) = await cluster.double(torch.tensor([1.5, 2]))
    assert torch.equal(result, torch.tensor([3.0, 4.0]))
    (result,) = await cluster.double(np.array([1], np.int64))
    assert torch.equal(result, torch.tensor([2]))


async def test_a_parameter_without_annotation_gets_what_travelled(cluster: Cluster[Any]):
    ((kind, values),) = await cluster.untyped(torch.ones(2), scale=3.0)
    assert kind == "ndarray"
    np.testing.assert_array_equal(values, [3, 3])


async def test_an_annotation_that_cannot_be_read_says_what_to_do(cluster: Cluster[Any]):
    with pytest.raises(
        RemoteError, match=r"name 'Decimal' is not defined; import that name .* not under TYPE_CHECKING"
    ):
        await cluster.of_a_type_that_is_not_there(1)


async def test_callers_of_the_base_reach_an_override_without_a_declaration(
    cluster: Cluster[Any], start_worker: Start, view: MemberView
):
    start_worker(Overriding, "plain-1", rank=1)
    await view.wait_for(Role.REWARD, 2, AT_ONCE_S)
    first, second = await cluster.untyped(2)
    assert (first, second) == (["int", 2.0], ["overridden", ["int", 2.0]])


async def test_an_override_without_annotations_has_those_of_what_it_overrides(
    cluster: Cluster[Any], start_worker: Start, view: MemberView
):
    start_worker(Overriding, "plain-1", rank=1)
    await view.wait_for(Role.REWARD, 2, AT_ONCE_S)
    tensor = torch.ones(1)
    assert await cluster.call_one("plain-1", Overriding.typed, tensor, [tensor]) == "Tensor ndarray"  # pyright: ignore
