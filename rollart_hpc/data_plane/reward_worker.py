"""The reward worker: the local pool behind serverless rewards, and all there is without them (paper R3)."""

from __future__ import annotations

import asyncio

import msgspec

from rollart_hpc.bus.mux import MuxServer
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
    """Runs the tasks' reward functions in child processes that can be killed."""

    role = Role.REWARD

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        config = context.config
        self._pool = LocalRewardPool(
            {name: task.reward for name, task in config.tasks.items()},
            timeout_s=config.rollout.reward_timeout_s,
        )
        self._mux: MuxServer[RewardRequest, RewardResult] = MuxServer(
            context.bus, context.member.member_id, RewardRequest, self._receive
        )
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def setup(self) -> None:
        """Starts the pool."""
        await self._pool.start()

    async def run(self) -> None:
        """Serves until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._mux.run()

    async def close(self) -> None:
        """Ends the pool's processes."""
        await self._pool.close()

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
            score = await self._pool.score(request.task, request.episode)
        except RewardFault as fault:
            self._mux.answer(inbox, RewardResult(request.request_id, None, fault.cause, str(fault)))
        else:
            self._mux.answer(inbox, RewardResult(request.request_id, score))
