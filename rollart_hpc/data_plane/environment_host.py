"""The environments of one environment worker: light ones here, all others in children that can be killed.

Consumes nothing by itself; is driven by the EnvManagers (paper section 6.1), one session per trajectory.
Invariants:

- What the user's code does wrong (hang, raise, die, return the wrong type) ends in an `EnvironmentFault`
  for its own session, within that call's deadline; other sessions do not notice, or are rebuilt (`ProcessSession`).
- A class that does not declare itself light is never imported here, not even to ask whether it is light.
- A child serves one class with its arguments, for one session after the other or, as the class declares, for many at
  a time (`EnvironmentPool`).
- Of one task, `max_resets` children's resets run at the same time: they are what is heavy.
- When `close` returns, no child is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Self

from rollart_hpc.bus.child import end_all
from rollart_hpc.data_plane.environment_instance import EnvironmentInstance, Transition
from rollart_hpc.data_plane.environment_messages import Reset
from rollart_hpc.data_plane.environment_pool import EnvironmentPool
from rollart_hpc.data_plane.environment_process import EnvironmentProcess, InstanceLostError
from rollart_hpc.data_plane.environment_session import EnvironmentSession, LightSession, ProcessSession, task_of
from rollart_hpc.data_plane.environment_spec import DIED, RESET_TIMEOUT, EnvironmentSpec
from rollart_hpc.data_plane.task_rows import TaskRows
from rollart_hpc.errors import EnvironmentFault
from rollart_hpc.interfaces import EnvironmentProperties

__all__ = ["EnvironmentHost", "EnvironmentSession", "EnvironmentSpec", "Trial", "try_environment"]

_FEWEST_RESETS = 8


class EnvironmentHost:
    """Opens sessions on the environments of the given tasks; ``async with`` starts and closes it.

    Args:
        specs: by task.
        max_children: processes at the same time; sessions for which there is no room in them wait, as long as
            their caller does.
        max_resets: of one task at the same time; two for each core when absent.
        close_timeout_s: what environments get for their own clean-up when the host closes.
    """

    def __init__(
        self,
        specs: Mapping[str, EnvironmentSpec],
        *,
        max_children: int,
        max_resets: int | None = None,
        close_timeout_s: float = 2.0,
    ) -> None:
        self._specs = dict(specs)
        max_resets = max_resets or max(_FEWEST_RESETS, 2 * len(os.sched_getaffinity(0)))
        self._resets = {task: asyncio.Semaphore(max_resets) for task in specs}
        self._pool = EnvironmentPool(max_children=max_children, close_timeout_s=close_timeout_s)
        self._properties: dict[str, EnvironmentProperties] = {}
        self._rows: dict[str, TaskRows] = {}
        self._idle_instances: dict[str, list[EnvironmentInstance]] = {task: [] for task in specs}

    async def __aenter__(self) -> Self:
        """Starts the host."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the host."""
        await self.close()

    async def start(self) -> None:
        """Finds the rows of each task's data set and asks its class, in a child, what it declares.

        Raises:
            ConfigError: a class cannot be imported or is none, or a data set has no rows.
            EnvironmentFault: an import hangs or kills its process.
        """
        try:
            for task, spec in self._specs.items():
                if spec.dataset is not None:
                    self._rows[task] = await asyncio.to_thread(TaskRows, spec.dataset)
            await asyncio.gather(*(self._describe(task) for task in self._specs))
        except BaseException:
            await self.close()
            raise

    def properties(self, task: str) -> EnvironmentProperties:
        """What the task's class declares."""
        return self._properties[task]

    @contextlib.asynccontextmanager
    async def open(self, task: str) -> AsyncGenerator[EnvironmentSession]:
        """A session for one trajectory of ``task``; leaving it frees the environment for the next."""
        if self._pool.is_closed:
            raise RuntimeError("the environment host is closed")
        spec, properties, rows = self._specs[task], self._properties[task], self._rows.get(task)
        if properties.light:
            light = LightSession(spec, rows, self._take_light(task))
            try:
                yield light
            finally:
                self._give_back_light(task, light)
            return
        session = ProcessSession(self._pool, spec, rows, is_replayable=properties.replayable, resets=self._resets[task])
        await session.enter()
        try:
            yield session
        finally:
            session.leave()

    async def close(self) -> None:
        """Closes idle environments, kills busy ones and what does not end by itself; bounded."""
        for instance in (instance for instances in self._idle_instances.values() for instance in instances):
            with contextlib.suppress(EnvironmentFault):
                instance.close()
        self._idle_instances.clear()
        await self._pool.close()
        for rows in self._rows.values():
            rows.close()

    async def _describe(self, task: str) -> None:
        spec = self._specs[task]
        self._properties[task] = properties = await self._pool.describe(spec)
        if properties.light:
            self._idle_instances[task].append(EnvironmentInstance(spec.entry_point, spec.args))

    def _take_light(self, task: str) -> EnvironmentInstance:
        spec, idle = self._specs[task], self._idle_instances[task]
        return idle.pop() if idle else EnvironmentInstance(spec.entry_point, spec.args)

    def _give_back_light(self, task: str, session: LightSession) -> None:
        if session.has_failed or self._pool.is_closed:
            with contextlib.suppress(EnvironmentFault):
                session.instance.close()
        else:
            self._idle_instances[task].append(session.instance)


@dataclass(frozen=True, slots=True)
class Trial:
    """What trying an environment told."""

    properties: EnvironmentProperties
    first: Transition | None
    """What its reset with seed 0 gave, where it is light."""


async def try_environment(spec: EnvironmentSpec) -> Trial:
    """Loads a class in a child of its own and, where it is light, resets it with seed 0; the child is then killed.

    Raises:
        ConfigError: it cannot be imported or is no environment, or its data set is wrong.
        EnvironmentFault: it raised, hung or died.
    """
    rows = await asyncio.to_thread(_checked_rows, spec) if spec.dataset is not None else None
    process = EnvironmentProcess(spec)
    try:
        properties = await process.loaded(spec.reset_timeout_s)
        if not properties.light:
            return Trial(properties, None)
        trying = process.play(Reset(0, 0, dict(task_of(rows, 0))), spec.reset_timeout_s, RESET_TIMEOUT)
        try:
            async with asyncio.timeout(spec.reset_timeout_s):
                return Trial(properties, (await trying).transition)
        except TimeoutError as error:
            raise EnvironmentFault(RESET_TIMEOUT, f"no answer within {spec.reset_timeout_s:g} s") from error
        except InstanceLostError as error:
            raise EnvironmentFault(DIED, str(error)) from error
    finally:
        process.kill()
        await end_all([process.child], grace_s=0.0)


def _checked_rows(spec: EnvironmentSpec) -> TaskRows | None:
    """The rows of a data set, each of them read."""
    if spec.dataset is None:
        return None
    rows = TaskRows(spec.dataset)
    for _ in rows.rows():
        pass
    return rows
