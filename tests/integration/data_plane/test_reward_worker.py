"""A reward worker of the user's own class: its method scores, the tasks' functions score what it does not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.control_plane.reward_gateway import RewardGateway
from rollart_hpc.data_plane.reward_worker import RewardCls
from rollart_hpc.data_plane.stop_signals import StopSignals
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.data_plane.worker_process import serve
from rollart_hpc.types import Episode, FinishReason, Role, Score, Turn
from tests.builders import run_config

DEADLINE_S = 30


class Judge(RewardCls):
    def compute_rewards(self, traj: list[dict[str, Any]]) -> dict[str, object]:
        if traj[-1]["action"] == "unheard of":
            raise ValueError("no opinion")
        return {"reward": len(traj), "success": True, "metrics": {"length": len(traj[-1]["action"])}}


def episode(*actions: str) -> Episode:
    turns = [Turn(observation="o", action=action, reward=0.0, finish_reason=FinishReason.STOP) for action in actions]
    return Episode(
        task="a", seed=0, turns=turns, final_observation="", terminated=True, truncated=False, info={"answered": True}
    )  # fmt: skip


async def test_every_episode_is_scored_by_the_class_s_own_method_or_else_by_the_task_s(
    server: NatsServer, bus: Bus, view: MemberView, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = run_config(tasks={"a": {"reward": "rollart_hpc.reward_functions.arithmetic:score"}})
    attempt = Attempt(
        run_directory=str(tmp_path), number=1, bus=server.endpoint, store=None, config=config.model_dump(mode="json")
    )
    member = Member(member_id="reward-0", role=Role.REWARD, hardware="cpu", node="n", pid=1)
    worker = asyncio.create_task(serve(Judge, attempt, member, StopSignals()))
    gateway = RewardGateway(bus, "environment-0", view, config)
    running = asyncio.create_task(gateway.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await view.wait_for(Role.REWARD, 1, DEADLINE_S)
            scores = await asyncio.gather(
                *(gateway.score(one) for one in (episode("abc"), episode("unheard of"), episode("a", "b")))
            )
    finally:
        for task in (worker, running):
            task.cancel()
        await asyncio.wait({worker, running})
    assert scores == [
        Score(reward=1.0, success=True, metrics={"length": 3.0}),
        Score(reward=0.0, success=False, metrics={"answered": 1.0}),
        Score(reward=2.0, success=True, metrics={"length": 1.0}),
    ]
    assert "compute_rewards gave no reward for a, the task's own function does: raised: ValueError" in caplog.text
