"""Rewards from reward workers that score, refuse, hang, die or are not there, over the real bus."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView, expel
from rollart_hpc.control_plane import reward_gateway
from rollart_hpc.control_plane.reward_gateway import RewardGateway
from rollart_hpc.data_plane import requests
from rollart_hpc.data_plane.reward_worker import RewardRequest, RewardResult
from rollart_hpc.errors import RewardFault
from rollart_hpc.types import Episode, Score
from tests.builders import run_config
from tests.integration.control_plane.scripted_engine import seen

TIMEOUT_S = 0.2
StartReward = Callable[..., Awaitable[list[RewardRequest]]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_SWEEP_EVERY_S", 0.02)
    monkeypatch.setattr(reward_gateway, "_GRACE_S", 0.0)


@pytest.fixture
async def gateway(bus: Bus, view: MemberView) -> AsyncIterator[RewardGateway]:
    made = RewardGateway(bus, "environment-0", view, run_config(reward_timeout_s=TIMEOUT_S))
    running = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    await bus.nc.flush()
    yield made
    running.cancel()
    await asyncio.wait({running})


def episode(seed: int = 3) -> Episode:
    return Episode(
        task="a", seed=seed, turns=[], final_observation="", terminated=True, truncated=False, info={"deep": [{"n": 1}]}
    )


def by_seed(request: RewardRequest) -> RewardResult:
    return RewardResult(request.request_id, Score(reward=float(request.episode.seed)))


def silent(request: RewardRequest) -> None:
    """Never answers."""


async def test_each_episode_gets_its_own_score(gateway: RewardGateway, start_reward: StartReward):
    asked = [await start_reward(f"reward-{number}", by_seed) for number in range(2)]
    scores = await asyncio.gather(*(gateway.score(episode(seed)) for seed in range(50)))
    assert [score.reward for score in scores] == list(map(float, range(50)))
    assert [len(requests) for requests in asked] == [25, 25]
    assert asked[0][0].episode.info == {"deep": [{"n": 1}]}


async def test_a_worker_that_never_answers_loses_the_episode_to_another(
    gateway: RewardGateway, start_reward: StartReward
):
    hung, _ = await start_reward("reward-0", silent), await start_reward("reward-1", by_seed)
    async with asyncio.timeout(3 * TIMEOUT_S):
        assert (await gateway.score(episode())).reward == 3.0
    assert len(hung) == 1


async def test_a_worker_that_ends_loses_the_episode_to_another(
    gateway: RewardGateway, start_reward: StartReward, bus: Bus, view: MemberView
):
    hung, _ = await start_reward("reward-0", silent), await start_reward("reward-1", by_seed)
    scoring = asyncio.create_task(gateway.score(episode()))
    while not hung:
        await bus.nc.flush()
    await seen(view, "reward-0", None, expel(bus, "reward-0"))
    assert (await scoring).reward == 3.0


async def test_what_the_function_does_wrong_is_told_and_not_tried_again(
    gateway: RewardGateway, start_reward: StartReward
):
    def refuse(request: RewardRequest) -> RewardResult:
        return RewardResult(request.request_id, None, "raised", "division by zero")

    asked = [await start_reward(f"reward-{number}", refuse) for number in range(2)]
    with pytest.raises(RewardFault, match="raised: division by zero") as fault:
        await gateway.score(episode())
    assert fault.value.cause == "raised"
    assert sum(map(len, asked)) == 1


async def test_when_no_worker_answers_there_is_no_score(gateway: RewardGateway, start_reward: StartReward):
    await start_reward("reward-0", silent)
    with pytest.raises(RewardFault, match="3 reward workers ended or did not answer") as fault:
        await gateway.score(episode())
    assert fault.value.cause == "timeout"


async def test_without_any_worker_there_is_no_score(gateway: RewardGateway):
    with pytest.raises(RewardFault, match="a live reward worker") as fault:
        await gateway.score(episode())
    assert fault.value.cause == "no_worker"
