"""Environments that take their time, for the benchmark of turns."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Mapping

from rollart_hpc.data_plane.environment_host import EnvironmentHost, EnvironmentSession, EnvironmentSpec
from rollart_hpc.data_plane.environment_instance import Transition


class PacedHost(EnvironmentHost):
    """An environment host whose environments think before they answer: one turn in ``period_s`` seconds."""

    def __init__(self, specs: Mapping[str, EnvironmentSpec], *, max_children: int, period_s: float) -> None:
        super().__init__(specs, max_children=max_children)
        self.period_s = period_s
        self.latencies_s: list[float] = []
        """Of every turn since it was last cleared: from the observation to the action that answers it."""
        self._begins_until = time.monotonic() + period_s

    @contextlib.asynccontextmanager
    async def open(self, task: str) -> AsyncGenerator[EnvironmentSession]:
        """See `EnvironmentHost.open`."""
        async with super().open(task) as session:
            yield _PacedSession(self, session)

    def offset_s(self) -> float:
        """When the first episode of an environment begins: any time within the first period; later ones at once."""
        return random.uniform(0, self.period_s) if time.monotonic() < self._begins_until else 0.0


class _PacedSession:
    def __init__(self, host: PacedHost, session: EnvironmentSession) -> None:
        self._host, self._session = host, session
        self._asked = 0.0

    async def reset(self, seed: int) -> Transition:
        if offset_s := self._host.offset_s():
            await asyncio.sleep(offset_s)
        return self._asks(await self._session.reset(seed))

    async def step(self, action: str) -> Transition:
        self._host.latencies_s.append(time.perf_counter() - self._asked)
        answer = await self._session.step(action)
        if self._host.period_s:
            await asyncio.sleep(self._host.period_s)
        return self._asks(answer)

    def _asks(self, observation: Transition) -> Transition:
        self._asked = time.perf_counter()
        return observation
