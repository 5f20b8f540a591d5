"""Rewards by a worker class's own method: what it may return, and when the local pool gives them instead."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollart_hpc.data_plane.class_rewards import ClassRewards, score_of
from rollart_hpc.errors import RewardFault
from rollart_hpc.types import Episode, FinishReason, Score, Turn


def episode(task: str = "lake") -> Episode:
    turn = Turn(observation="o", action="a", reward=0.25, finish_reason=FinishReason.STOP)
    return Episode(
        task=task, seed=0, turns=[turn], final_observation="", terminated=True, truncated=False, info={}
    )  # fmt: skip


def rewards(compute: Callable[[list[dict[str, Any]]], Any], timeout_s: float = 10) -> ClassRewards:
    async def call(turns: list[dict[str, Any]]) -> object:
        result = compute(turns)
        return await result if asyncio.iscoroutine(result) else result

    return ClassRewards(call, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (0.5, Score(reward=0.5)),
        (np.float32(1), Score(reward=1.0)),
        ([2], Score(reward=2.0)),
        ({"reward": 1}, Score(reward=1.0)),
        ({"reward": 1.0, "success": True, "metrics": {"a": 1}}, Score(reward=1.0, success=True, metrics={"a": 1.0})),
        ([{"reward": 1, "else": "ignored"}], Score(reward=1.0)),
        (Score(reward=1.0, success=True), Score(reward=1.0, success=True)),
    ],
    ids=repr,
)
def test_a_number_a_mapping_or_a_list_of_one_is_a_score(value: object, score: Score):
    assert score_of(value) == score


@pytest.mark.parametrize(
    "value",
    [
        None, "1.0", float("nan"), float("inf"), [], [1, 2], [[1]], {}, {"reward": "1"}, {"reward": float("nan")},
        {"reward": None}, {"reward": 1, "metrics": {"a": "b"}}, {"reward": 1, "success": "yes"},
    ],
    ids=repr,
)  # fmt: skip
def test_anything_else_is_a_fault_and_never_a_reward_of_0(value: object):
    with pytest.raises(RewardFault) as fault:
        score_of(value)
    assert fault.value.cause == "bad_value"


async def test_the_method_gets_the_turns_as_plain_values():
    given: list[object] = []
    own = rewards(lambda turns: given.append(turns) or 1.0)
    assert await own.score(episode()) == Score(reward=1.0)
    assert given == [[{"observation": "o", "action": "a", "reward": 0.25, "finish_reason": "stop"}]]
    assert (own.num_scored, own.faults.total()) == (1, 0)


def divide_by_zero(_: object) -> float:
    return 1 / 0


def refuse(_: object) -> float:
    raise RewardFault("unreachable", "no route")


def leave(_: object) -> float:
    raise SystemExit(3)


async def hang(_: object) -> float:
    await asyncio.Event().wait()
    return 1.0


async def time_out_itself(_: object) -> float:
    raise TimeoutError("its own")


@pytest.mark.parametrize(
    ("compute", "cause", "said"),
    [
        (divide_by_zero, "raised", r"ZeroDivisionError: division by zero \(.*test_class_rewards.py:\d+\)"),
        (refuse, "unreachable", "no route"),
        (leave, "raised", "SystemExit: 3"),
        (hang, "timeout", r"no answer within 0\.05 s"),
        (time_out_itself, "raised", "TimeoutError: its own"),
        (lambda _: None, "bad_value", "got NoneType"),
    ],
    ids=["raises", "refuses", "exits", "hangs", "own timeout", "nothing"],
)
async def test_what_goes_wrong_leaves_the_episode_to_the_local_pool_and_says_so(
    compute: Callable[[Any], Any], cause: str, said: str, caplog: pytest.LogCaptureFixture
):
    own = rewards(compute, timeout_s=0.05)
    assert await own.score(episode()) is None
    assert dict(own.faults) == {cause: 1}
    assert "compute_rewards gave no reward for lake, the task's own function does" in caplog.text
    assert re.search(said, caplog.text)


async def test_a_method_that_keeps_failing_is_left_alone_for_a_while_task_by_task(caplog: pytest.LogCaptureFixture):
    calls: list[object] = []
    own = rewards(calls.append)
    caplog.set_level(logging.WARNING)
    for _ in range(20):
        assert await own.score(episode()) is None
    assert len(calls) == 5
    assert dict(own.faults) == {"bad_value": 5, "left alone": 15}
    assert caplog.text.count("gave no reward") == 3  # the first, the second and the fourth
    await own.score(episode("other"))
    assert len(calls) == 6


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


async def test_an_error_that_cannot_say_what_it_is_is_a_fault_like_any_other():
    def compute(_: object) -> float:
        raise Speechless

    own = rewards(compute)
    assert await own.score(episode()) is None
    assert own.faults == {"raised": 1}
