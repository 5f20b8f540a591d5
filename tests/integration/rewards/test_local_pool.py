"""Reward functions that misbehave in every way, with others in flight beside them."""

import asyncio
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from rollart_hpc.errors import ConfigError, RewardFault
from rollart_hpc.rewards.local_pool import LocalRewardPool
from rollart_hpc.types import Episode, FinishReason, Score, Turn

USER_CODE = """
import asyncio, os, re, sys, time
import numpy as np
from rollart_hpc.types import Score

class Speechless:
    def __repr__(self):
        raise RuntimeError

async def score(episode):
    action = episode.turns[0].action
    if action == "hang":
        time.sleep(60)
    if action == "wait for ever":
        await asyncio.sleep(60)
    if action == "die":
        os._exit(9)
    if action == "die late":
        await asyncio.sleep(0.05)
        os._exit(9)
    if action == "regex bomb":
        re.match("(a+)+$", "a" * 60 + "b")
    if action == "number bomb":
        9 ** (9 ** (9 ** 9))
    if action == "wait":
        await asyncio.sleep(0.1)
    if action == "raise":
        raise ValueError("no idea")
    if action == "raise half a character":
        raise ValueError("half \\ud800")
    if action == "exit":
        sys.exit(1)
    if action == "cancel":
        raise asyncio.CancelledError
    if action == "print":
        print("hello" * 10_000, flush=True)
    return {
        "NaN": float("nan"), "None": None, "text": "1.0", "infinite": float("-inf"),
        "huge": 10**400, "huge metric": Score(reward=1.0, metrics={"huge": 2**70}),
        "half a character": Score(reward=1.0, metrics={"\\ud800": 1.0}), "speechless": Speechless(),
        "wrong score": Score(reward="1.0"), "NaN score": Score(reward=float("nan")),
        "numpy": np.float32(0.5), "whole": Score(reward=2.0, success=True, metrics={"seed": 1.0}),
    }.get(action, float(episode.seed))

def blocking(episode):
    return 1.0

async def generating(episode):
    yield 1.0

async def with_arguments(episode, *, weights, scale=1.0):
    return scale * sum(weights)
"""
TIMEOUT_S = 0.5


@pytest.fixture(autouse=True)
def _user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty_reward.py").write_text(USER_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def pool(function: str = "score", **settings: Any) -> LocalRewardPool:
    return LocalRewardPool({"task": f"faulty_reward:{function}"}, timeout_s=TIMEOUT_S, **settings)


def episode(action: str = "", seed: int = 0) -> Episode:
    turn = Turn(observation="o", action=action, reward=0.0, finish_reason=FinishReason.STOP)
    return Episode(
        task="task", seed=seed, turns=[turn], final_observation="", terminated=True, truncated=False, info={}
    )


def children() -> list[psutil.Process]:
    """Live descendants, but for what Python's multiprocessing keeps beside a process that has used it."""
    alive = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if not any("resource_tracker" in word for word in child.cmdline())]


async def fault_of(rewards: LocalRewardPool, action: str) -> RewardFault:
    with pytest.raises(RewardFault) as caught:
        await rewards.score("task", episode(action))
    return caught.value


async def test_a_number_and_a_score_are_rewards() -> None:
    async with pool() as rewards:
        assert await rewards.score("task", episode(seed=7)) == Score(reward=7.0)
        assert await rewards.score("task", episode("numpy")) == Score(reward=0.5)
        whole = Score(reward=2.0, success=True, metrics={"seed": 1.0})
        assert await rewards.score("task", episode("whole")) == whole
        assert await rewards.score("task", episode("print", seed=3)) == Score(reward=3.0)
    assert not children()


@pytest.mark.parametrize(
    ("action", "cause", "detail"),
    [
        ("raise", "raised", "ValueError: no idea"),
        ("raise half a character", "raised", "ValueError: half \\ud800"),
        ("exit", "raised", "SystemExit"),
        ("cancel", "raised", "CancelledError"),
        ("NaN", "bad_value", "finite"),
        ("infinite", "bad_value", "finite"),
        ("None", "bad_value", "NoneType"),
        ("text", "bad_value", "str"),
        ("huge", "bad_value", "finite"),
        ("huge metric", "bad_value", "wrong types or values"),
        ("half a character", "bad_value", "wrong types or values"),
        ("speechless", "bad_value", "Speechless"),
        ("wrong score", "bad_value", "wrong types"),
        ("NaN score", "bad_value", "finite"),
    ],
)
async def test_what_is_no_reward_is_a_fault_and_costs_no_process(action: str, cause: str, detail: str) -> None:
    async with pool() as rewards:
        before = children()
        fault = await fault_of(rewards, action)
        assert (fault.cause, detail in str(fault)) == (cause, True), fault
        assert await rewards.score("task", episode(seed=1)) == Score(reward=1.0)
        assert children() == before


@pytest.mark.parametrize("function", ["blocking", "generating"])
async def test_a_function_that_is_not_async_is_refused_with_advice(function: str) -> None:
    with pytest.raises(ConfigError, match=f"faulty_reward:{function} is not async; write `async def`"):
        await pool(function).start()
    assert not children()


async def test_an_episode_that_no_message_takes_costs_nothing() -> None:
    async with pool() as rewards:
        unsendable = msgspec.structs.replace(episode(), info={"count": 2**70})
        with pytest.raises(RewardFault, match="unsendable"):
            await rewards.score("task", unsendable)
        assert await rewards.score("task", episode(seed=1)) == Score(reward=1.0)


@pytest.mark.parametrize(
    ("action", "cause"), [("hang", "timeout"), ("wait for ever", "timeout"), ("die", "died"), ("die late", "died")]
)
async def test_two_hundred_others_succeed_while_one_hangs_or_kills_its_process(action: str, cause: str) -> None:
    async with pool() as rewards:
        before = time.monotonic()
        bad = asyncio.create_task(fault_of(rewards, action))
        others = (rewards.score("task", episode("wait" if seed % 50 == 0 else "", seed)) for seed in range(200))
        scores = await asyncio.gather(*others)
        assert [score.reward for score in scores] == list(range(200))
        assert (await bad).cause == cause
        assert time.monotonic() - before < 30, "what hangs, hangs for 60 s"
    assert not children()


@pytest.mark.parametrize("bomb", ["regex bomb", "number bomb"])
async def test_a_bomb_delays_nobody_else(bomb: str) -> None:
    async with LocalRewardPool({"task": "faulty_reward:score"}, timeout_s=2) as rewards:

        async def seconds_of(action: str, seed: int) -> float:
            begin = time.monotonic()
            assert (await rewards.score("task", episode(action, seed))).reward == seed
            return time.monotonic() - begin

        # Some wait for something in the child that the bomb will block.
        waiting = [asyncio.create_task(seconds_of("wait", seed)) for seed in range(10)]
        await asyncio.sleep(0.05)
        bombs = [asyncio.create_task(fault_of(rewards, bomb))]
        seconds = [await seconds_of("", seed) for seed in range(200)]
        seconds += await asyncio.gather(*(seconds_of("", seed) for seed in range(200)), *waiting)
        assert not bombs[0].done()
        assert max(seconds) < 1.5, "others wait as long as the bomb burns"
        assert sorted(seconds)[-20] < 0.4
        assert (await bombs[0]).cause == "timeout"


async def test_many_bombs_at_once_delay_the_others_by_the_start_of_one_process() -> None:
    async with LocalRewardPool({"task": "faulty_reward:score"}, timeout_s=20) as rewards:
        bombs = [asyncio.create_task(fault_of(rewards, "regex bomb")) for _ in range(8)]
        await asyncio.sleep(0.5)  # those that start first have blocked their processes by now, and the others are known
        assert await rewards.score("task", episode("", 1)) == Score(reward=1.0)
        assert len(children()) <= 4, "each bomb blocked a process before others had one"
        scores = await asyncio.gather(*(rewards.score("task", episode("", seed)) for seed in range(50)))
        assert [score.reward for score in scores] == list(range(50))
        assert not any(bomb.done() for bomb in bombs)
    assert {(await bomb).cause for bomb in bombs} == {"died"}, "the pool was closed"


async def test_who_is_late_through_another_s_fault_has_no_fault() -> None:
    async with pool(num_children=1) as rewards:
        waiting = [asyncio.create_task(rewards.score("task", episode("wait", seed))) for seed in range(10)]
        await asyncio.sleep(0.05)
        bomb = asyncio.create_task(fault_of(rewards, "hang"))
        assert [(await call).reward for call in waiting] == list(range(10))
        assert (await bomb).cause == "timeout"


async def test_arguments_of_the_config_are_the_function_s_keyword_arguments() -> None:
    functions = {"a": "faulty_reward:with_arguments", "b": "faulty_reward:with_arguments"}
    arguments = {"a": {"weights": [1, 2]}, "b": {"weights": [1], "scale": 0.5}}
    async with LocalRewardPool(functions, arguments=arguments, timeout_s=TIMEOUT_S) as rewards:
        assert [(await rewards.score(task, episode())).reward for task in ("a", "b")] == [3.0, 0.5]
    with pytest.raises(ConfigError, match=r"arguments {'scale': 2}: missing a required.*argument: 'weights'"):
        await LocalRewardPool({"a": functions["a"]}, arguments={"a": {"scale": 2}}, timeout_s=TIMEOUT_S).start()


async def test_a_process_killed_from_outside_costs_no_call() -> None:
    async with pool(num_children=2) as rewards:
        calls = [asyncio.create_task(rewards.score("task", episode("wait", seed))) for seed in range(50)]
        await asyncio.sleep(0.05)
        children()[0].send_signal(signal.SIGKILL)
        assert [(await call).reward for call in calls] == list(range(50))


async def test_a_cancelled_call_that_hangs_still_loses_its_process() -> None:
    async with pool(num_children=1) as rewards:
        (hung,) = children()
        call = asyncio.create_task(rewards.score("task", episode("hang")))
        await asyncio.sleep(0.1)
        call.cancel()
        assert await rewards.score("task", episode(seed=1)) == Score(reward=1.0)
        while hung.is_running():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_signals_to_the_whole_step_do_not_touch_children() -> None:
    async with pool() as rewards:
        before = children()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            os.kill(before[0].pid, number)
        assert await rewards.score("task", episode(seed=1)) == Score(reward=1.0)
        assert children() == before


async def test_calls_in_flight_end_when_the_pool_closes() -> None:
    rewards = pool()
    await rewards.start()
    call = asyncio.create_task(fault_of(rewards, "wait for ever"))
    await asyncio.sleep(0.1)
    await rewards.close()
    assert (await call).cause == "died"
    assert (await fault_of(rewards, "")).cause == "died"
    assert not children()


async def test_a_process_that_hangs_before_it_starts_a_call_costs_no_call(caplog: pytest.LogCaptureFixture) -> None:
    async with pool(num_children=1, silence_timeout_s=0.5) as rewards:
        (hung,) = children()
        hung.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(30):
            scores = await asyncio.gather(*(rewards.score("task", episode(seed=seed)) for seed in range(3)))
            assert [score.reward for score in scores] == [0.0, 1.0, 2.0]
            while hung.is_running():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert re.search(rf"reward process {hung.pid} has not answered for \d\S* s and is killed", caplog.text)


async def test_a_call_without_room_does_not_wait_for_ever() -> None:
    async with LocalRewardPool(
        {"task": "faulty_reward:score"}, timeout_s=60, num_children=1, in_flight_per_child=1, queue_timeout_s=0.2
    ) as rewards:
        first = asyncio.create_task(fault_of(rewards, "wait for ever"))
        await asyncio.sleep(0)
        fault = await fault_of(rewards, "")
        assert (fault.cause, str(fault)) == ("timeout", "timeout: no reward process had room for 0.2 s")
    await first


async def test_a_process_that_does_not_become_ready_is_ended_and_told(tmp_path: Path) -> None:
    (tmp_path / "slow_reward.py").write_text("import time\ntime.sleep(60)")
    rewards = LocalRewardPool({"task": "slow_reward:score"}, timeout_s=TIMEOUT_S, start_timeout_s=0.5)
    with pytest.raises(RewardFault, match=r"a reward process took over 0\.5 s to start"):
        await rewards.start()
    assert not children()


async def test_a_missing_function_is_a_config_error_at_start() -> None:
    with pytest.raises(ConfigError, match="did you mean 'score'"):
        await pool("scare").start()
    assert not children()


def cpu_s() -> float:
    """Processor time of this process and its children."""
    times = [process.cpu_times() for process in (psutil.Process(), *children())]
    return sum(each.user + each.system for each in times)


async def test_a_trivial_call_costs_less_than_a_third_of_a_millisecond_of_a_processor() -> None:
    async with LocalRewardPool({"task": "faulty_reward:score"}, timeout_s=30) as rewards:

        async def one_after_the_other(num_calls: int) -> None:
            for seed in range(num_calls):
                await rewards.score("task", episode(seed=seed))

        seconds: list[float] = []
        for _ in range(3):
            begin = cpu_s()
            await asyncio.gather(*(one_after_the_other(50) for _ in range(64)))
            seconds.append(cpu_s() - begin)
    assert min(seconds) / 3200 < 0.0003
