"""The environments of one environment worker: light ones here, all others in children that can be killed.

Consumes nothing by itself; is driven by the EnvManagers (paper section 6.1), one session per trajectory.
Invariants:

- What the user's code does wrong (hang, raise, die, return the wrong type) ends in an `EnvironmentFault`
  for its own session, within that call's deadline; other sessions do not notice.
- A class that does not declare itself light is never imported here, not even to ask whether it is light.
- A child runs one session at a time and is used again for the same class and arguments. A child in an
  unknown state (a fault, a session that was left in the middle of a call) is killed, never used again.
- When `close` returns, no child is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol, Self

from rollart_hpc.bus.child import end_all
from rollart_hpc.data_plane.environment_child import Reset, Step
from rollart_hpc.data_plane.environment_instance import EnvironmentInstance, Transition
from rollart_hpc.data_plane.environment_process import EnvironmentProcess, EnvironmentSpec
from rollart_hpc.errors import ConfigError, EnvironmentFault
from rollart_hpc.interfaces import EnvironmentProperties


class EnvironmentSession(Protocol):
    """One trajectory's use of an environment; the first fault is its end."""

    async def reset(self, seed: int) -> Transition:
        """Starts the episode.

        Raises:
            EnvironmentFault: reset_timeout, raised, died, bad_type.
        """
        ...

    async def step(self, action: str) -> Transition:
        """Applies the policy's text.

        Raises:
            EnvironmentFault: step_timeout, raised, died, bad_type.
        """
        ...


class EnvironmentHost:
    """Opens sessions on the environments of the given tasks; ``async with`` starts and closes it.

    Args:
        specs: by task.
        max_children: processes at the same time; sessions above it wait until one is free, as long as
            their caller does.
        close_timeout_s: what environments get for their own clean-up when the host closes.
    """

    def __init__(
        self, specs: Mapping[str, EnvironmentSpec], *, max_children: int, close_timeout_s: float = 2.0
    ) -> None:
        self._specs = dict(specs)
        self._max_children = max_children
        self._close_timeout_s = close_timeout_s
        self._slots = asyncio.Semaphore(max_children)
        self._properties: dict[str, EnvironmentProperties] = {}
        self._idle_instances: dict[str, list[EnvironmentInstance]] = {task: [] for task in specs}
        self._idle_processes: list[EnvironmentProcess] = []
        self._processes: set[EnvironmentProcess] = set()
        self._num_busy = 0
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Starts the host."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the host."""
        await self.close()

    async def start(self) -> None:
        """Asks each task's class, in a child, what it declares.

        Raises:
            ConfigError: a class cannot be imported or is none.
            EnvironmentFault: an import hangs or kills its process.
        """
        try:
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
        if self._is_closed:
            raise RuntimeError("the environment host is closed")
        spec = self._specs[task]
        if self._properties[task].light:
            light = self._take_light(task)
            try:
                yield light
            finally:
                self._give_back_light(task, light)
            return
        async with self._slots:
            process = self._take_process(spec)
            self._num_busy += 1
            try:
                yield _ProcessSession(spec, process)
            finally:
                self._num_busy -= 1
                self._give_back_process(process)

    async def close(self) -> None:
        """Closes idle environments, kills busy ones and what does not end by itself; bounded."""
        self._is_closed = True
        for process in self._processes:
            if process in self._idle_processes:
                process.ask_to_end()
            else:
                process.kill()
        for instance in (instance for instances in self._idle_instances.values() for instance in instances):
            with contextlib.suppress(EnvironmentFault):
                instance.close()
        self._idle_instances.clear()
        await end_all([process.child for process in self._processes], grace_s=self._close_timeout_s)

    async def _describe(self, task: str) -> None:
        spec = self._specs[task]
        process = self._start_process(spec)
        loaded = await process.load(spec.reset_timeout_s)
        self._properties[task] = EnvironmentProperties(light=loaded.light, replayable=loaded.replayable)
        if loaded.light:
            self._idle_instances[task].append(EnvironmentInstance(spec.entry_point, spec.args))
        if loaded.light or len(self._idle_processes) >= self._max_children:
            process.ask_to_end()
        else:
            self._idle_processes.append(process)

    def _take_light(self, task: str) -> _LightSession:
        spec, idle = self._specs[task], self._idle_instances[task]
        return _LightSession(spec, idle.pop() if idle else EnvironmentInstance(spec.entry_point, spec.args))

    def _give_back_light(self, task: str, session: _LightSession) -> None:
        if session.has_failed or self._is_closed:
            with contextlib.suppress(EnvironmentFault):
                session.instance.close()
        else:
            self._idle_instances[task].append(session.instance)

    def _take_process(self, spec: EnvironmentSpec) -> EnvironmentProcess:
        for process in self._idle_processes:
            if process.key == spec.key:
                self._idle_processes.remove(process)
                return process
        if self._num_busy + len(self._idle_processes) >= self._max_children:
            self._idle_processes.pop(0).kill()
        return self._start_process(spec)

    def _give_back_process(self, process: EnvironmentProcess) -> None:
        if process.is_reusable and not self._is_closed:
            self._idle_processes.append(process)
        else:
            process.kill()

    def _start_process(self, spec: EnvironmentSpec) -> EnvironmentProcess:
        process = EnvironmentProcess(spec, on_end=self._forget)
        self._processes.add(process)
        return process

    def _forget(self, process: EnvironmentProcess) -> None:
        self._processes.discard(process)
        if process in self._idle_processes:
            self._idle_processes.remove(process)


class _LightSession:
    """Runs in this process: nothing can cut a call short, but one that took too long is a fault all the same."""

    def __init__(self, spec: EnvironmentSpec, instance: EnvironmentInstance) -> None:
        self.instance = instance
        self.has_failed = False
        self._spec = spec

    async def reset(self, seed: int) -> Transition:
        return self._played(Reset(seed), self._spec.reset_timeout_s, "reset_timeout")

    async def step(self, action: str) -> Transition:
        return self._played(Step(action), self._spec.step_timeout_s, "step_timeout")

    def _played(self, request: Reset | Step, timeout_s: float, timeout_cause: str) -> Transition:
        begin = time.monotonic()
        has_failed, self.has_failed = self.has_failed, True
        if has_failed:
            raise EnvironmentFault("raised", "the session has failed before")
        if isinstance(request, Reset):
            transition = self.instance.reset(request.seed)
        else:
            transition = self.instance.step(request.action)
        seconds = time.monotonic() - begin
        if seconds > timeout_s:
            detail = f"took {seconds:.1f} s of {timeout_s:g} s; {self._spec.entry_point} must not declare itself light"
            raise EnvironmentFault(timeout_cause, detail)
        self.has_failed = False
        return transition


class _ProcessSession:
    def __init__(self, spec: EnvironmentSpec, process: EnvironmentProcess) -> None:
        self._spec = spec
        self._process = process

    async def reset(self, seed: int) -> Transition:
        begin = time.monotonic()
        if not self._process.is_loaded:
            try:
                await self._process.load(self._spec.reset_timeout_s)
            except ConfigError as error:
                raise EnvironmentFault("raised", str(error)) from error
        remaining_s = self._spec.reset_timeout_s - (time.monotonic() - begin)
        return await self._process.play(Reset(seed), remaining_s, "reset_timeout")

    async def step(self, action: str) -> Transition:
        return await self._process.play(Step(action), self._spec.step_timeout_s, "step_timeout")


async def try_environment(spec: EnvironmentSpec) -> Transition | None:
    """Loads a class in a child of its own and, where it is light, resets it with seed 0; the child is then killed.

    Raises:
        ConfigError: it cannot be imported or is no environment.
        EnvironmentFault: it raised, hung or died.
    """
    process = EnvironmentProcess(spec, on_end=lambda _: None)
    try:
        loaded = await process.load(spec.reset_timeout_s)
        return await process.play(Reset(0), spec.reset_timeout_s, "reset_timeout") if loaded.light else None
    finally:
        process.kill()
        await process.child.wait_ended()
