"""Sessions: one trajectory's use of one environment, here or in a child.

A session in a child survives what its child suffers through others. Its instance is rebuilt elsewhere, where the class
is replayable: from the seed, the task and the actions so far, compared with what was said before. That happens when its
child ended, or when it waits there for a slow sibling longer than rebuilding has to take. What its own call does is
its own: it is never made again, but for a reset that failed by what another try may change.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Mapping
from typing import Any, Protocol

from rollart_hpc.data_plane.environment_instance import EnvironmentInstance, Transition
from rollart_hpc.data_plane.environment_messages import Played, Reset, Step
from rollart_hpc.data_plane.environment_pool import EnvironmentPool, Seat
from rollart_hpc.data_plane.environment_process import InstanceLostError, MovedError
from rollart_hpc.data_plane.environment_spec import (
    DIED,
    DIFFERS,
    RAISED,
    RESET_TIMEOUT,
    STEP_TIMEOUT,
    UNAVAILABLE,
    EnvironmentSpec,
)
from rollart_hpc.data_plane.task_rows import TaskRows
from rollart_hpc.errors import EnvironmentFault

_RESET_TRIES = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_MAY_HELP = (UNAVAILABLE, DIED)
"""Causes of a failed reset that another try may change."""


class EnvironmentSession(Protocol):
    """One trajectory's use of an environment; the first fault is its end."""

    async def reset(self, seed: int) -> Transition:
        """Starts the episode of a seed, with its row of the task's data set.

        Raises:
            EnvironmentFault: reset_timeout, raised, unavailable, configuration, died, bad_type.
        """
        ...

    async def step(self, action: str) -> Transition:
        """Applies the policy's text.

        Raises:
            EnvironmentFault: step_timeout, raised, unavailable, configuration, died, differs, bad_type.
        """
        ...


class LightSession:
    """Runs in this process: nothing can cut a call short, but one that took too long is a fault all the same."""

    def __init__(self, spec: EnvironmentSpec, rows: TaskRows | None, instance: EnvironmentInstance) -> None:
        self.instance = instance
        self.has_failed = False
        self._spec, self._rows = spec, rows

    async def reset(self, seed: int) -> Transition:
        """See `EnvironmentSession.reset`."""
        begin = self._begin()
        task = task_of(self._rows, seed)
        return self._in_time(self.instance.reset(seed, task), begin, self._spec.reset_timeout_s, RESET_TIMEOUT)

    async def step(self, action: str) -> Transition:
        """See `EnvironmentSession.step`."""
        begin = self._begin()
        return self._in_time(self.instance.step(action), begin, self._spec.step_timeout_s, STEP_TIMEOUT)

    def _begin(self) -> float:
        if self.has_failed:
            raise EnvironmentFault(RAISED, "the session has failed before")
        self.has_failed = True
        return time.monotonic()

    def _in_time(self, transition: Transition, begin: float, timeout_s: float, cause: str) -> Transition:
        seconds = time.monotonic() - begin
        if seconds > timeout_s:
            detail = f"took {seconds:.1f} s of {timeout_s:g} s; {self._spec.entry_point} must not declare itself light"
            raise EnvironmentFault(cause, detail)
        self.has_failed = False
        return transition


class ProcessSession:
    """Runs in a child of the pool; `enter` comes first, `leave` last.

    Args:
        pool: gives the instances.
        spec: the class.
        rows: of its data set.
        is_replayable: the class declares it.
        resets: bounds how many run at the same time.
    """

    def __init__(
        self,
        pool: EnvironmentPool,
        spec: EnvironmentSpec,
        rows: TaskRows | None,
        *,
        is_replayable: bool,
        resets: asyncio.Semaphore,
    ) -> None:
        self._pool, self._spec, self._rows, self._resets = pool, spec, rows, resets
        self._is_replayable = is_replayable
        self._seat: Seat | None = None
        self._seed = 0
        self._task: Mapping[str, Any] = {}
        self._actions: list[str] = []
        self._said: list[int] = []
        """Digests of what the environment answered, that of the reset first."""
        self._spent_s = 0.0
        """What reset and steps took so far, with their waits: about what rebuilding takes as things are here now."""

    async def enter(self) -> None:
        """Takes an instance, as soon as there is one."""
        self._seat = await self._pool.acquire(self._spec)

    def leave(self) -> None:
        """Gives the instance back."""
        if self._seat is not None:
            self._pool.release(self._seat)
            self._seat = None

    async def reset(self, seed: int) -> Transition:
        """See `EnvironmentSession.reset`."""
        self._seed, self._task = seed, task_of(self._rows, seed)
        self._actions.clear()
        async with self._resets:
            begin = time.monotonic()
            played = await self._reset_tries()
        self._said, self._spent_s = [_digest(played.transition)], time.monotonic() - begin
        return played.transition

    async def step(self, action: str) -> Transition:
        """See `EnvironmentSession.step`."""
        begin = time.monotonic()
        rebuild_by: float | None = None
        lost = "it waited for a slow one"
        while True:
            try:
                if rebuild_by is not None:
                    await self._rebuild(rebuild_by)
                played = await self._call(Step(self._taken.instance, action), self._spec.step_timeout_s, STEP_TIMEOUT)
            except (InstanceLostError, MovedError) as error:
                lost = str(error) or lost
                if not self._is_replayable or self._pool.is_closed:
                    raise EnvironmentFault(DIED, lost) from error
                rebuild_by = rebuild_by or time.monotonic() + self._rebuild_timeout_s
            except TimeoutError as error:
                limit = f"{self._rebuild_timeout_s:g} s"
                raise EnvironmentFault(DIED, f"{lost}; it was not rebuilt elsewhere within {limit}") from error
            else:
                break
        self._actions.append(action)
        self._said.append(_digest(played.transition))
        self._spent_s += time.monotonic() - begin
        return played.transition

    @property
    def _rebuild_timeout_s(self) -> float:
        """A rebuild has a reset in it, and follows on a call that waits: it has the longer deadline of the two."""
        return max(self._spec.reset_timeout_s, self._spec.step_timeout_s)

    async def _reset_tries(self) -> Played:
        """The first answer of a reset that does not fail by what another try may change."""
        end = time.monotonic() + self._spec.reset_timeout_s
        failed: EnvironmentFault | None = None
        for number in range(1, _RESET_TRIES + 1):
            remaining_s = end - time.monotonic()
            if failed is not None and remaining_s <= 0:
                raise _after(number - 1, failed)
            try:
                return await self._reset_once(remaining_s)
            except EnvironmentFault as fault:
                if failed is not None and fault.cause == RESET_TIMEOUT:
                    # What made it try again says more than that the time was up then.
                    raise _after(number - 1, failed) from fault
                pause_s = random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**number))
                out_of_time = time.monotonic() + pause_s >= end
                if fault.cause not in _MAY_HELP or number == _RESET_TRIES or out_of_time or self._pool.is_closed:
                    raise _after(number, fault) from fault
                failed = fault
            await asyncio.sleep(pause_s)
            await self._take_seat(alone=failed.cause == DIED)
        raise AssertionError

    async def _reset_once(self, timeout_s: float) -> Played:
        """In whatever child: nothing is lost with its place before a reset is over."""
        while True:
            request = Reset(self._taken.instance, self._seed, dict(self._task))
            try:
                played = await self._call(request, timeout_s, RESET_TIMEOUT, moves_after_s=0.0)
            except (InstanceLostError, MovedError) as error:
                if self._pool.is_closed:
                    raise EnvironmentFault(DIED, str(error)) from error
                await self._take_seat()
            else:
                self._taken.process.is_reserved = False
                return played

    async def _rebuild(self, by: float) -> None:
        """Plays what was played, in another place.

        Raises:
            TimeoutError: it is not over in time.
            InstanceLostError, MovedError: that place is lost, too.
            EnvironmentFault: it failed, or did not say the same again.
        """
        async with asyncio.timeout(max(0.0, by - time.monotonic())):
            await self._take_seat()
            instance = self._taken.instance
            requests = [Reset(instance, self._seed, dict(self._task)), *(Step(instance, a) for a in self._actions)]
            for number, (request, said) in enumerate(zip(requests, self._said, strict=True)):
                if number:
                    played = await self._call(request, self._spec.step_timeout_s, STEP_TIMEOUT)
                else:
                    played = await self._call(request, self._spec.reset_timeout_s, RESET_TIMEOUT)
                if _digest(played.transition) != said:
                    what = f"its answer to action {number}" if number else "its first observation"
                    raise EnvironmentFault(
                        DIFFERS,
                        f"{self._spec.entry_point} was rebuilt with seed {self._seed}, and {what} is another one now; "
                        "it must not declare itself replayable",
                    )

    async def _call(
        self, request: Reset | Step, timeout_s: float, cause: str, *, moves_after_s: float | None = None
    ) -> Played:
        if moves_after_s is None:
            moves_after_s = self._spent_s if self._is_replayable else math.inf
        return await self._taken.process.play(request, timeout_s, cause, moves_after_s=moves_after_s)

    async def _take_seat(self, *, alone: bool = False) -> None:
        self.leave()
        self._seat = await self._pool.acquire(self._spec, alone=alone, lost_its_place=True)

    @property
    def _taken(self) -> Seat:
        if self._seat is None:
            raise EnvironmentFault(DIED, "the session is over")
        return self._seat


def task_of(rows: TaskRows | None, seed: int) -> Mapping[str, Any]:
    """The task of an episode: its row of the data set, empty without one.

    Raises:
        EnvironmentFault: configuration: the row cannot be read.
    """
    return rows.row(seed) if rows is not None else {}


def _digest(transition: Transition) -> int:
    """Of all that the policy and its training see."""
    # Of a number itself the hash would not do: those of -1 and -2 are equal.
    return hash((transition.observation, repr(transition.reward), transition.terminated, transition.truncated))


def _after(tries: int, fault: EnvironmentFault) -> EnvironmentFault:
    if tries == 1:
        return fault
    return EnvironmentFault(fault.cause, f"{str(fault).removeprefix(f'{fault.cause}: ')} (after {tries} tries)")
