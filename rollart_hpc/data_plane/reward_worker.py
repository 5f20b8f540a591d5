"""The reward worker: the local pool behind serverless rewards, and all there is without them (paper R3).

A class of the user's own that defines `compute_rewards` scores every episode by it (paper Listing 1); what it does not
score, the pool does.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from rollart_hpc.bus.mux import MuxServer
from rollart_hpc.data_plane.class_rewards import METHOD, ClassRewards, check_compute_rewards
from rollart_hpc.data_plane.worker import Worker, WorkerContext
from rollart_hpc.errors import RewardFault
from rollart_hpc.rewards.local_pool import LocalRewardPool
from rollart_hpc.types import Episode, Role, Score


class RewardRequest(msgspec.Struct, frozen=True, array_like=True):
    """One episode to score."""

    request_id: int
    task: str
    episode: Episode


class RewardResult(msgspec.Struct, frozen=True, array_like=True):
    """Its score, or why there is none."""

    request_id: int
    score: Score | None
    cause: str = ""
    detail: str = ""


class RewardCls(Worker):
    """Scores episodes: by its own `compute_rewards` where it has one, else in child processes that can be killed."""

    role = Role.REWARD

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_compute_rewards(cls)

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        config = context.config
        self._pool = self.create_pool()
        compute = getattr(self, METHOD, None)
        self._class_rewards = (
            ClassRewards(partial(self.invoke, compute), timeout_s=config.rollout.reward_timeout_s) if compute else None
        )
        self._mux: MuxServer[RewardRequest, RewardResult] = MuxServer(
            context.bus, context.member.member_id, RewardRequest, self._receive
        )
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def create_pool(self) -> LocalRewardPool:
        """Where the reward functions run; not started yet."""
        config = self.context.config
        return LocalRewardPool(
            {name: task.reward for name, task in config.tasks.items()},
            arguments={name: task.reward_args for name, task in config.tasks.items()},
            timeout_s=config.rollout.reward_timeout_s,
        )

    async def setup(self) -> None:
        """Starts the pool, whose children find the run's settings of sandboxes and images."""
        self.context.config.node_settings().publish()
        await self._pool.start()

    async def run(self) -> None:
        """Serves until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._mux.run()

    async def close(self) -> None:
        """Ends the pool's processes."""
        await self._pool.close()

    @property
    def num_busy(self) -> int:
        """Episodes that are being scored."""
        return len(self._running)

    def _receive(self, inbox: str, requests: list[RewardRequest], aborts: list[int]) -> None:
        for request_id in aborts:
            if task := self._running.get((inbox, request_id)):
                task.cancel()
        for request in requests:
            key = (inbox, request.request_id)
            if key not in self._running and self._group is not None:
                self._running[key] = self._group.create_task(self._score(inbox, request))
                self._running[key].add_done_callback(lambda _, key=key: self._running.pop(key, None))

    async def _score(self, inbox: str, request: RewardRequest) -> None:
        try:
            score = await self._class_rewards.score(request.episode) if self._class_rewards else None
            if score is None:
                score = await self._pool.score(request.task, request.episode)
        except RewardFault as fault:
            self._mux.answer(inbox, RewardResult(request.request_id, None, fault.cause, str(fault)))
        else:
            self._mux.answer(inbox, RewardResult(request.request_id, score))
