"""Emulated rewards: the pool of a reward worker, with other insides."""

from __future__ import annotations

import asyncio
import contextlib
import random

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.rewards.local_pool import LocalRewardPool
from rollart_hpc.rewards.payload import TokenEpisode
from rollart_hpc.simulate.busy import Busy
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.distributions import draw
from rollart_hpc.simulate.environments import SUCCESS
from rollart_hpc.simulate.scenario import EmulationSection
from rollart_hpc.types import Episode, Score


class EmulatedPool(LocalRewardPool):
    """Scores episodes after a while: on ``reward_slots`` devices of their own, or where there is always room."""

    def __init__(self, config: RunConfig, figures: EmulationSection, clock: Clock) -> None:
        super().__init__({}, timeout_s=config.rollout.reward_timeout_s)
        self.busy = Busy(clock)
        self._figures = figures
        self._rng = random.Random(config.run.seed)
        slots = self._figures.reward_slots
        self._slots = contextlib.nullcontext() if slots is None else asyncio.Semaphore(slots)

    async def start(self) -> None:
        """See `LocalRewardPool.start`."""

    async def close(self) -> None:
        """See `LocalRewardPool.close`."""

    async def score(self, task: str, episode: Episode | TokenEpisode) -> Score:
        """See `LocalRewardPool.score`."""
        async with self._slots:
            await self.busy.work(draw(self._figures.tasks[task].reward_s, self._rng))
        success = bool(episode.info.get(SUCCESS))
        # No two members score the same: every group has variance, and is trained.
        return Score(reward=float(success) + self._rng.random() * 1e-3, success=success)
