"""Reward functions that misbehave in every way, with others in flight beside them."""

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from rollart_hpc.errors import ConfigError, RewardFault
from rollart_hpc.rewards.local_pool import LocalRewardPool
from rollart_hpc.types import Episode, FinishReason, Score, Turn

USER_CODE = """
import asyncio, os, sys, time
import numpy as np
from rollart_hpc.types import Score

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
    if action == "wait":
        await asyncio.sleep(0.1)
    if action == "raise":
        raise ValueError("no idea")
    if action == "exit":
        sys.exit(1)
    if action == "cancel":
        raise asyncio.CancelledError
    if action == "print":
        print("hello" * 10_000, flush=True)
    return {
        "NaN": float("nan"), "None": None, "text": "1.0", "infinite": float("-inf"),
        "wrong score": Score(reward="1.0"), "NaN score": Score(reward=float("nan")),
        "numpy": np.float32(0.5), "whole": Score(reward=2.0, success=True, metrics={"seed": 1.0}),
    }.get(action, float(episode.seed))

def blocking(episode):
    return 1.0
"""
TIMEOUT_S = 0.5


@pytest.fixture(autouse=True)
def _user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty_reward.py").write_text(USER_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def pool(function: str = "score", num_children: int = 1) -> LocalRewardPool:
    return LocalRewardPool({"task": f"faulty_reward:{function}"}, timeout_s=TIMEOUT_S, num_children=num_children)


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
        ("exit", "raised", "SystemExit"),
        ("cancel", "raised", "CancelledError"),
        ("NaN", "bad_value", "finite"),
        ("infinite", "bad_value", "finite"),
        ("None", "bad_value", "NoneType"),
        ("text", "bad_value", "str"),
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


async def test_a_function_that_is_not_async_is_refused_with_advice() -> None:
    async with pool("blocking") as rewards:
        assert "write `async def`" in str(await fault_of(rewards, ""))


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
        assert time.monotonic() - before < 6
    assert not children()


async def test_a_process_killed_from_outside_costs_no_call() -> None:
    async with pool(num_children=2) as rewards:
        calls = [asyncio.create_task(rewards.score("task", episode("wait", seed))) for seed in range(50)]
        await asyncio.sleep(0.05)
        children()[0].send_signal(signal.SIGKILL)
        assert [(await call).reward for call in calls] == list(range(50))


async def test_a_cancelled_call_that_hangs_still_loses_its_process() -> None:
    async with pool() as rewards:
        (hung,) = children()
        call = asyncio.create_task(rewards.score("task", episode("hang")))
        await asyncio.sleep(0.1)
        call.cancel()
        assert await rewards.score("task", episode(seed=1)) == Score(reward=1.0)
        assert not hung.is_running()


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


async def test_a_missing_function_is_a_config_error_at_start() -> None:
    with pytest.raises(ConfigError, match="did you mean 'score'"):
        await pool("scare").start()
    assert not children()


async def test_one_child_scores_thousands_of_trivial_calls_a_second() -> None:
    async with LocalRewardPool({"task": "faulty_reward:score"}, timeout_s=30) as rewards:

        async def one_after_the_other(num_calls: int) -> None:
            for seed in range(num_calls):
                await rewards.score("task", episode(seed=seed))

        seconds: list[float] = []
        for _ in range(3):
            begin = time.monotonic()
            await asyncio.gather(*(one_after_the_other(50) for _ in range(64)))
            seconds.append(time.monotonic() - begin)
    assert 3200 / min(seconds) > 3000
