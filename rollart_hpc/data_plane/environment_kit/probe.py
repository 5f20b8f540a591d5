"""A child of its own with instances of the class that is checked; nothing of it is ever imported here."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from rollart_hpc.bus.child import end_all
from rollart_hpc.data_plane.environment_instance import Transition
from rollart_hpc.data_plane.environment_kit.policies import RandomPolicy
from rollart_hpc.data_plane.environment_messages import Played, Reset, Step
from rollart_hpc.data_plane.environment_process import EnvironmentProcess, InstanceLostError
from rollart_hpc.data_plane.environment_session import task_of
from rollart_hpc.data_plane.environment_spec import DIED, RESET_TIMEOUT, STEP_TIMEOUT, EnvironmentSpec
from rollart_hpc.data_plane.task_rows import TaskRows
from rollart_hpc.errors import EnvironmentFault
from rollart_hpc.interfaces import EnvironmentProperties


@dataclass(frozen=True, slots=True)
class Script:
    """One episode as it was played first: what every other play of it is compared with."""

    seed: int
    actions: tuple[str, ...]
    said: tuple[Transition, ...]
    """The first observation, and the answer to each action."""


@dataclass(slots=True)
class Timings:
    """What calls took in their child, by call: the best of its plays is the environment's own time."""

    resets: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict[int, list[float]](list))
    steps: defaultdict[tuple[int, int], list[float]] = field(
        default_factory=lambda: defaultdict[tuple[int, int], list[float]](list)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The class that is checked, and what all checks of it share."""

    spec: EnvironmentSpec
    properties: EnvironmentProperties
    rows: TaskRows | None
    max_turns: int
    timings: Timings = field(default_factory=Timings)

    @contextlib.asynccontextmanager
    async def child(self) -> AsyncGenerator[Probe]:
        """A fresh child, killed at the end."""
        process = EnvironmentProcess(self.spec, self.properties)
        try:
            yield Probe(self, process)
        finally:
            process.kill()
            await end_all([process.child], grace_s=0.0)


class Probe:
    """One child and what can be done with its instances."""

    def __init__(self, subject: Subject, process: EnvironmentProcess) -> None:
        self._subject, self.process = subject, process
        self._resting: set[int] = set()

    async def reset(self, seed: int, instance: int = 0) -> Transition:
        """Starts an episode.

        Raises:
            EnvironmentFault: as in a run.
        """
        spec = self._subject.spec
        request = Reset(instance, seed, dict(task_of(self._subject.rows, seed)))
        played = await self._played(request, spec.reset_timeout_s, RESET_TIMEOUT)
        # The first reset of an instance has the constructor in it, and mostly imports.
        if instance in self._resting:
            self._subject.timings.resets[seed].append(played.seconds)
        self._resting.add(instance)
        return played.transition

    async def step(self, action: str, instance: int = 0, *, place: tuple[int, int] | None = None) -> Transition:
        """Plays a turn; with its place, seed and turn, what it takes is counted."""
        played = await self._played(Step(instance, action), self._subject.spec.step_timeout_s, STEP_TIMEOUT)
        if place is not None:
            self._subject.timings.steps[place].append(played.seconds)
        return played.transition

    async def play(self, seed: int, instance: int = 0) -> Script:
        """A random episode."""
        policy = RandomPolicy(seed)
        said = [await self.reset(seed, instance)]
        actions: list[str] = []
        while not _is_over(said[-1]) and len(actions) < self._subject.max_turns:
            actions.append(policy.act(said[-1].info))
            said.append(await self.step(actions[-1], instance, place=(seed, len(actions))))
        return Script(seed, tuple(actions), tuple(said))

    async def replay(self, script: Script, instance: int = 0) -> str:
        """Plays a script again; returns in what it differs, empty where it does not."""
        said = await self.reset(script.seed, instance)
        if difference := first_difference(said, script.said[0]):
            return f"seed {script.seed}, first observation: {difference}"
        for turn, (action, expected) in enumerate(zip(script.actions, script.said[1:], strict=True), start=1):
            said = await self.step(action, instance, place=(script.seed, turn))
            if difference := first_difference(said, expected):
                return f"seed {script.seed}, turn {turn}: {difference}"
        return ""

    async def close(self, instance: int = 0) -> None:
        """Closes an instance; its next reset makes another one."""
        try:
            await self.process.close(instance)
        except InstanceLostError as error:
            raise EnvironmentFault(DIED, str(error)) from error
        self._resting.discard(instance)

    def memory_bytes(self) -> int:
        """What the child and all below it have to themselves."""
        return sum(unique_bytes(one) for one in family(self.process.child.pid))

    async def _played(self, request: Reset | Step, timeout_s: float, cause: str) -> Played:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.process.play(request, timeout_s, cause)
        except TimeoutError as error:
            self.process.kill()
            raise EnvironmentFault(cause, f"no answer within {timeout_s:g} s") from error
        except InstanceLostError as error:
            raise EnvironmentFault(DIED, str(error)) from error


def first_difference(got: Transition, expected: Transition) -> str:
    """What a transition says otherwise than another, in words."""
    for name in ("observation", "reward", "terminated", "truncated"):
        if getattr(got, name) != getattr(expected, name):
            return f"{name} is {_shown(getattr(got, name))}, was {_shown(getattr(expected, name))}"
    return "".join(_differing_info(got.info, expected.info))


def _differing_info(got: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(got.keys() | expected.keys()):
        if got.get(key) != expected.get(key):
            yield f"info[{key!r}] is {_shown(got.get(key))}, was {_shown(expected.get(key))}"
            return


def family(pid: int) -> Sequence[psutil.Process]:
    """A process and all below it, as far as they are there."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def unique_bytes(process: psutil.Process) -> int:
    """Memory that would be free without this process; 0 when it is gone or not ours."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


def _is_over(said: Transition) -> bool:
    return said.terminated or said.truncated


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
