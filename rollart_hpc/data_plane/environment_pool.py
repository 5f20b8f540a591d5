"""The children of an environment host: which instance of which child a session gets, and when it has to wait.

Invariants:

- At most ``max_children`` processes at a time. A class whose instances cannot live side by side has a process for each;
  of the others a child holds up to `INSTANCES_PER_CHILD`, and as many children are started at once as there are cores,
  more only when those are full.
- A session goes to the child with the fewest, and to a slow one only when there is no other.
- Sessions that find no room wait in the order in which they came; those that lost their place come first, and a child
  that is full takes them all the same.
- A child without sessions is kept for the next one, until its place is needed for another class.
- When `close` returns, no child is left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rollart_hpc.bus.child import end_all
from rollart_hpc.data_plane.environment_process import EnvironmentProcess, live_side_by_side
from rollart_hpc.data_plane.environment_spec import DIED, UNAVAILABLE, EnvironmentSpec
from rollart_hpc.errors import EnvironmentFault
from rollart_hpc.interfaces import EnvironmentProperties

_log = logging.getLogger(__name__)
_SWEEP_S = 0.025
_DESCRIBE_S = 60.0
"""At least, for the import of a class when the host starts."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One instance in one child."""

    process: EnvironmentProcess
    instance: int


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    spec: EnvironmentSpec
    key: bytes
    seat: asyncio.Future[Seat]
    alone: bool
    lost_its_place: bool


class EnvironmentPool:
    """Starts, fills, watches and ends children.

    Args:
        max_children: processes at the same time.
        close_timeout_s: what environments get for their own clean-up when the pool closes.
    """

    def __init__(self, *, max_children: int, close_timeout_s: float) -> None:
        self._max_children = max_children
        self._close_timeout_s = close_timeout_s
        self._num_cores = len(os.sched_getaffinity(0))
        self._properties: dict[bytes, EnvironmentProperties] = {}
        self._processes: list[EnvironmentProcess] = []
        self._waiters: deque[_Waiter] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self.is_closed = False

    async def describe(self, spec: EnvironmentSpec) -> EnvironmentProperties:
        """What a class declares, asked in a child, which is then kept if it is of use.

        Raises:
            ConfigError: it cannot be imported, or is none.
            EnvironmentFault: reset_timeout, died, unavailable.
        """
        process = self._start(spec, None)
        # No reset is waited for yet, and all classes of a worker are imported at once.
        properties = await process.loaded(max(spec.reset_timeout_s, _DESCRIBE_S))
        self._properties[spec.key] = properties
        if properties.light or self._num_sound > self._max_children:
            process.ask_to_end()
        return properties

    async def acquire(self, spec: EnvironmentSpec, *, alone: bool = False, lost_its_place: bool = False) -> Seat:
        """An instance of the class, as soon as there is room.

        Args:
            spec: the class and its arguments.
            alone: in a new child that holds nothing else as long as it is reserved.
            lost_its_place: before those that are new.

        Raises:
            EnvironmentFault: died, when the pool is closed; unavailable, when there is no process that could be waited
                for and none can be started.
        """
        if self.is_closed:
            raise EnvironmentFault(DIED, "the environment host is closed")
        key = spec.key
        has_precedence = lost_its_place or not any(waiter.key == key for waiter in self._waiters)
        seat = self._place(spec, alone=alone, over_capacity=lost_its_place) if has_precedence else None
        if seat is not None:
            return seat
        waiter = _Waiter(spec, key, asyncio.get_running_loop().create_future(), alone, lost_its_place)
        if lost_its_place:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        try:
            return await waiter.seat
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.seat.cancelled() and waiter.seat.exception() is None:
                self.release(waiter.seat.result())
            raise

    def release(self, seat: Seat) -> None:
        """The session is over, or has another seat."""
        seat.process.leave(seat.instance)

    async def close(self) -> None:
        """Lets idle environments close, kills busy ones and what does not end by itself; bounded."""
        self.is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for waiter in self._waiters:
            if not waiter.seat.done():
                waiter.seat.set_exception(EnvironmentFault(DIED, "the environment host was closed"))
        self._waiters.clear()
        processes = list(self._processes)
        for process in processes:
            if process.num_seated:
                process.kill()
            else:
                process.ask_to_end()
        await end_all([process.child for process in processes], grace_s=self._close_timeout_s)

    # --- places ---------------------------------------------------------------------------------------

    def _place(self, spec: EnvironmentSpec, *, alone: bool, over_capacity: bool) -> Seat | None:
        """A seat by the rules of this pool; None where there is none."""
        process = self._process_for(spec, alone=alone, over_capacity=over_capacity)
        if process is None:
            return None
        process.is_reserved = alone
        return Seat(process, process.seat())

    def _process_for(self, spec: EnvironmentSpec, *, alone: bool, over_capacity: bool) -> EnvironmentProcess | None:
        if alone:
            return self._new(spec)
        now = time.monotonic()
        mine = [one for one in self._processes if one.key == spec.key and one.is_sound and not one.is_reserved]
        if not live_side_by_side(self._properties[spec.key]):
            return next((one for one in mine if not one.num_seated), None) or self._new(spec)
        with_room = [one for one in mine if over_capacity or one.num_seated < one.capacity]
        quick = [one for one in with_room if not one.is_slow(now)]
        best = _emptiest(quick)
        if best is not None and (not best.num_seated or self._cores_are_taken(now)):
            return best
        return self._new(spec) or best or _emptiest(with_room)

    def _has_better_place(self, process: EnvironmentProcess, now: float) -> bool:
        others = (one for one in self._processes if one.key == process.key and one.is_sound and not one.is_reserved)
        return self._may_start() or any(not one.is_slow(now) for one in others)

    def _cores_are_taken(self, now: float) -> bool:
        """By children that hold many; those that hang, or wait for something slow, do not count."""
        busy = [one for one in self._processes if one.is_shared and one.num_seated and not one.is_slow(now)]
        return len(busy) >= self._num_cores

    def _may_start(self) -> bool:
        return self._num_sound < self._max_children or self._idle() is not None

    def _idle(self) -> EnvironmentProcess | None:
        return next((one for one in self._processes if one.is_sound and not one.num_seated), None)

    @property
    def _num_sound(self) -> int:
        return sum(one.is_sound for one in self._processes)

    def _new(self, spec: EnvironmentSpec) -> EnvironmentProcess | None:
        """A new child, if there may be one more; an idle one of another class makes room."""
        if self._num_sound >= self._max_children:
            idle = self._idle()
            if idle is None:
                return None
            idle.kill()
        try:
            return self._start(spec, self._properties[spec.key])
        except EnvironmentFault as fault:
            if not any(one.num_seated for one in self._processes):
                raise
            # Whoever leaves one of those makes room.
            _log.warning("%s; sessions wait for the processes that there are", fault)
            return None

    def _start(self, spec: EnvironmentSpec, properties: EnvironmentProperties | None) -> EnvironmentProcess:
        try:
            process = EnvironmentProcess(spec, properties, on_room=self._serve_waiters, on_end=self._forget)
        except OSError as error:
            why = f"no process for {spec.entry_point} can be started on this node: {error.strerror or error}"
            raise EnvironmentFault(UNAVAILABLE, why) from error
        self._processes.append(process)
        if self._sweep_timer is None:
            self._sweep()
        return process

    def _forget(self, process: EnvironmentProcess) -> None:
        self._processes.remove(process)
        self._serve_waiters()

    def _serve_waiters(self) -> None:
        if self.is_closed:
            return
        full: set[tuple[bytes, bool]] = set()
        for waiter in list(self._waiters):
            kind = (waiter.key, waiter.alone)
            if kind in full or waiter.seat.done():
                continue
            try:
                seat = self._place(waiter.spec, alone=waiter.alone, over_capacity=waiter.lost_its_place)
            except EnvironmentFault as fault:
                self._waiters.remove(waiter)
                waiter.seat.set_exception(fault)
                continue
            if seat is None:
                full.add(kind)
            else:
                self._waiters.remove(waiter)
                waiter.seat.set_result(seat)

    def _sweep(self) -> None:
        """Ends what is overdue, and waits that have become useless; runs by a timer for as long as the pool is open."""
        now = time.monotonic()
        for process in list(self._processes):
            process.fail_overdue(now)
            process.move_waiting(now, lambda process=process: self._has_better_place(process, now))
        self._sweep_timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)


def _emptiest(processes: Sequence[EnvironmentProcess]) -> EnvironmentProcess | None:
    return min(processes, key=lambda one: one.num_seated, default=None)
