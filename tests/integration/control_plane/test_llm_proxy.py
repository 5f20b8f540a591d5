"""Turns over the real bus to generation workers that answer, refuse, hang, die or are not there."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.control_plane import llm_proxy
from rollart_hpc.control_plane.llm_proxy import LLMProxy
from rollart_hpc.data_plane import requests
from rollart_hpc.errors import RollartError, WaitTimeout
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult
from tests.integration.control_plane.scripted_engine import ScriptedEngine, reply, silent

Start = Callable[..., Awaitable[ScriptedEngine]]
TIMEOUT_S = 0.3


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_SWEEP_EVERY_S", 0.02)
    monkeypatch.setattr(llm_proxy, "_AFTER_REFUSAL_S", 0.01)


@pytest.fixture
async def proxy(bus: Bus, view: MemberView) -> AsyncIterator[LLMProxy]:
    made = LLMProxy(bus, "environment-0", view, lambda tag: "H800" if tag == "lake" else "H20", timeout_s=TIMEOUT_S)
    running = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    await bus.nc.flush()
    yield made
    running.cancel()
    await asyncio.wait({running})


def turn(proxy: LLMProxy, tag: str = "sums", prompt: int = 4) -> GenerateRequest:
    token_ids = np.arange(prompt, dtype=np.int32).tobytes()
    return GenerateRequest(proxy.next_request_id(), token_ids, max_tokens=8, tag=tag)


async def worker_of(proxy: LLMProxy, tag: str = "sums", sticky: str | None = None, prompt: int = 4) -> str:
    async with asyncio.timeout(10):
        result, worker = await proxy.generate(turn(proxy, tag, prompt), sticky)
    assert result.finish_reason is FinishReason.STOP
    return worker


def answer(request: GenerateRequest) -> GenerateResult:
    return reply(request, [7, 8])


def refuse(request: GenerateRequest) -> GenerateResult:
    return reply(request, [], FinishReason.ABORT, error="prompt has an id outside the vocabulary")


def abort(request: GenerateRequest) -> GenerateResult:
    return reply(request, [7], FinishReason.ABORT)


def books(proxy: LLMProxy) -> tuple[int, int, int]:
    """What the proxy still remembers: outstanding tokens, futures in flight, ids that wait for an answer."""
    held = proxy._requests  # pyright: ignore[reportPrivateUsage]
    in_flight = sum(len(futures) for futures in held._in_flight.values())  # pyright: ignore[reportPrivateUsage]
    outstanding = sum(load.tokens for load in held._loads.values())  # pyright: ignore[reportPrivateUsage]
    return outstanding, in_flight, len(held._mux._pending)  # pyright: ignore[reportPrivateUsage]


async def test_a_turn_goes_to_the_hardware_of_its_tag_while_that_lives(
    proxy: LLMProxy, view: MemberView, start_engine: Start
):
    fast = await start_engine("gen-0", answer, hardware="H800")
    await start_engine("gen-1", answer, hardware="H20")
    assert [await worker_of(proxy, tag) for tag in ("lake", "sums", "lake", "other")] == [
        "gen-0",
        "gen-1",
        "gen-0",
        "gen-1",
    ]
    await fast.expel(view)
    assert await worker_of(proxy, "lake") == "gen-1"
    await start_engine("gen-0", answer, hardware="H800")
    assert await worker_of(proxy, "lake", sticky="gen-1") == "gen-0"


async def test_the_answer_is_that_of_the_request(proxy: LLMProxy, start_engine: Start):
    await start_engine("gen-0", lambda request: reply(request, [len(request.token_ids) // 4]))
    results = await asyncio.gather(*(proxy.generate(turn(proxy, prompt=size), None) for size in range(1, 50)))
    assert [np.frombuffer(result.token_ids, np.int32).tolist() for result, _ in results] == [[s] for s in range(1, 50)]


async def test_a_trajectory_stays_with_its_worker_and_others_go_where_little_waits(
    proxy: LLMProxy, start_engine: Start
):
    first, _ = await start_engine("gen-0", silent), await start_engine("gen-1", answer)
    waiting = asyncio.create_task(proxy.generate(turn(proxy, prompt=1000), "gen-0"))
    await first.wait_until(lambda: len(first.requests) == 1)
    assert await worker_of(proxy) == "gen-1"
    first.script = answer
    assert await worker_of(proxy, sticky="gen-0") == "gen-0"
    waiting.cancel()
    await asyncio.wait({waiting})
    assert await worker_of(proxy) == "gen-0"


async def test_turns_spread_over_workers_that_are_equally_good(proxy: LLMProxy, start_engine: Start):
    engines = [await start_engine(f"gen-{number}", silent) for number in range(2)]
    turns = [asyncio.create_task(proxy.generate(turn(proxy), None)) for _ in range(10)]
    for engine in engines:
        await engine.wait_until(lambda engine=engine: len(engine.requests) == 5)
    for waiting in turns:
        waiting.cancel()
    await asyncio.wait(turns)


async def test_a_worker_that_ends_hands_its_turns_to_another_at_once(bus: Bus, view: MemberView, start_engine: Start):
    proxy = LLMProxy(bus, "environment-9", view, lambda _: None, timeout_s=60)
    running = asyncio.create_task(proxy.run())
    dying, other = await start_engine("gen-0", silent), await start_engine("gen-1", answer)
    waiting = [asyncio.create_task(proxy.generate(turn(proxy), "gen-0")) for _ in range(5)]
    await dying.wait_until(lambda: len(dying.requests) == 5)
    await dying.expel(view)
    async with asyncio.timeout(5):
        assert {worker for _, worker in await asyncio.gather(*waiting)} == {"gen-1"}
    assert [one.token_ids for one in other.requests] == [one.token_ids for one in dying.requests]
    assert books(proxy) == (0, 0, 0)
    running.cancel()
    await asyncio.wait({running})


async def test_a_worker_that_was_started_again_does_not_answer_for_the_one_before(
    bus: Bus, view: MemberView, start_engine: Start
):
    proxy = LLMProxy(bus, "environment-9", view, lambda _: None, timeout_s=60)
    running = asyncio.create_task(proxy.run())
    dying = await start_engine("gen-0", silent)
    waiting = asyncio.create_task(proxy.generate(turn(proxy), None))
    await dying.wait_until(lambda: len(dying.requests) == 1)
    dying.serving.cancel()
    await start_engine("gen-0", answer)
    async with asyncio.timeout(5):
        assert (await waiting)[1] == "gen-0"
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("sticky", ["gen-0", None])
async def test_a_worker_that_never_answers_loses_the_turn_to_another(
    proxy: LLMProxy, start_engine: Start, sticky: str | None
):
    hung, _ = await start_engine("gen-0", silent), await start_engine("gen-1", answer)
    async with asyncio.timeout(2 * TIMEOUT_S):
        assert await worker_of(proxy, sticky=sticky) == "gen-1"
    assert len(hung.requests) == 1
    await hung.wait_until(lambda: hung.aborts == [hung.requests[0].request_id])
    assert books(proxy) == (0, 0, 0)


async def test_the_late_answer_of_a_slow_worker_is_not_taken_for_another_s(proxy: LLMProxy, start_engine: Start):
    """The abort of an overdue turn is answered too; that must not end the turn at its new worker."""
    await start_engine("gen-0", silent)
    other = await start_engine("gen-1", silent)
    waiting = asyncio.create_task(worker_of(proxy, sticky="gen-0"))
    await other.wait_until(lambda: len(other.requests) == 1)
    await asyncio.sleep(TIMEOUT_S / 3)
    assert not waiting.done()
    other.script = answer
    other._receive("inbox.environment-0.actor_gen", [other.requests[0]], [])  # pyright: ignore[reportPrivateUsage]
    assert await waiting == "gen-1"
    assert len(other.requests) == 2


async def test_when_no_worker_answers_the_wait_ends_and_says_so(proxy: LLMProxy, start_engine: Start):
    engines = [await start_engine(f"gen-{number}", silent) for number in range(2)]
    with pytest.raises(WaitTimeout, match=r"waited 0.3 s for a turn with tag 'sums' from 5 generation workers"):
        await worker_of(proxy)
    assert sorted(len(engine.requests) for engine in engines) == [2, 3]
    assert books(proxy) == (0, 0, 0)


@pytest.mark.parametrize("script", [refuse, abort], ids=["error", "abort"])
async def test_a_turn_that_a_worker_gives_back_is_tried_at_another(proxy: LLMProxy, start_engine: Start, script):
    failing, _ = await start_engine("gen-0", script), await start_engine("gen-1", answer)
    assert await worker_of(proxy, sticky="gen-0") == "gen-1"
    assert len(failing.requests) == 1
    assert books(proxy) == (0, 0, 0)


async def test_a_turn_that_every_worker_refuses_fails_with_the_reason(proxy: LLMProxy, start_engine: Start):
    engines = [await start_engine(f"gen-{number}", refuse) for number in range(2)]
    with pytest.raises(RollartError, match=r"gen-\d: prompt has an id outside the vocabulary"):
        await worker_of(proxy)
    assert all(len(engine.requests) >= 2 for engine in engines)
    assert books(proxy) == (0, 0, 0)


async def test_a_turn_without_any_worker_waits_for_one_that_joins(proxy: LLMProxy, start_engine: Start):
    waiting = [asyncio.create_task(worker_of(proxy)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    await start_engine("gen-0", answer)
    assert await asyncio.gather(*waiting) == ["gen-0"] * 3


async def test_a_turn_without_any_worker_does_not_wait_for_ever(proxy: LLMProxy):
    with pytest.raises(WaitTimeout, match=r"waited 0.3 s for a live actor_gen worker from the members, in vain"):
        await worker_of(proxy)


async def test_a_turn_that_is_not_wanted_any_more_is_aborted_where_it_runs(proxy: LLMProxy, start_engine: Start):
    engine = await start_engine("gen-0", silent)
    waiting = asyncio.create_task(proxy.generate(turn(proxy), None))
    await engine.wait_until(lambda: len(engine.requests) == 1)
    waiting.cancel()
    await engine.wait_until(lambda: engine.aborts == [engine.requests[0].request_id])
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert books(proxy) == (0, 0, 0)


async def test_answered_turns_are_forgotten_while_a_slow_one_goes_on(proxy: LLMProxy, start_engine: Start):
    slow = turn(proxy, prompt=100)
    engine = await start_engine("gen-0", lambda request: None if len(request.token_ids) == 400 else answer(request))
    waiting = asyncio.create_task(proxy.generate(slow, None))
    await engine.wait_until(lambda: len(engine.requests) == 1)
    await asyncio.gather(*(worker_of(proxy) for _ in range(100)))
    held = proxy._requests  # pyright: ignore[reportPrivateUsage]
    assert books(proxy) == (108, 1, 1)
    assert max(len(value) for value in vars(held).values() if isinstance(value, dict | set | deque | list)) == 1
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_whatever_happens_no_load_is_left_on_the_books(proxy: LLMProxy, view: MemberView, start_engine: Start):
    dice = random.Random(0)

    def by_chance(request: GenerateRequest) -> GenerateResult | None:
        script = dice.choice([answer, answer, refuse, abort, silent])
        return script(request)

    engines = [await start_engine(f"gen-{number}", by_chance) for number in range(3)]
    turns = [asyncio.create_task(proxy.generate(turn(proxy), None)) for _ in range(100)]
    for waiting in dice.sample(turns, 20):
        await asyncio.sleep(0.002)
        waiting.cancel()
    await engines[0].expel(view)
    async with asyncio.timeout(10):
        ended = await asyncio.gather(*turns, return_exceptions=True)
    assert len([one for one in ended if isinstance(one, tuple)]) > 60
    assert books(proxy) == (0, 0, 0)


class Last:
    """The last worker by id, whatever else is the case."""

    def choose(self, route, workers, loads):
        return workers[-1] if workers else None


class Raising:
    def choose(self, route, workers, loads):
        return 1 / 0


class Wrong:
    def choose(self, route, workers, loads):
        return "gen-0"


def with_policy(bus: Bus, view: MemberView, policy: object) -> LLMProxy:
    return LLMProxy(bus, "environment-8", view, lambda _: "H800", timeout_s=TIMEOUT_S, policy=policy)  # pyright: ignore


async def test_a_policy_of_the_user_s_own_chooses(bus: Bus, view: MemberView, start_engine: Start):
    await start_engine("gen-0", answer, hardware="H800")
    await start_engine("gen-1", answer, hardware="H20")
    proxy = with_policy(bus, view, Last())
    running = asyncio.create_task(proxy.run())
    await asyncio.sleep(0)
    await bus.nc.flush()
    assert [await worker_of(proxy, sticky="gen-0") for _ in range(2)] == ["gen-1", "gen-1"]
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize(("policy", "words"), [(Raising(), "raised ZeroDivisionError"), (Wrong(), "chose 'gen-0'")])
async def test_a_policy_that_is_wrong_fails_the_turn_and_says_so(
    bus: Bus, view: MemberView, start_engine: Start, policy: object, words: str
):
    await start_engine("gen-0", answer)
    proxy = with_policy(bus, view, policy)
    with pytest.raises(RollartError, match=words):
        await proxy.generate(turn(proxy), None)
