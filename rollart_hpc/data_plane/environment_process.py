"""The parent's side of one environment child (`rollart_hpc.data_plane.environment_child`), its instances and calls.

Invariants:

- The child holds as many calls as it can run, all others wait here: a call's deadline runs from the moment it is sent,
  and what its siblings take is not its time.
- A call over its deadline ends in a fault. Where calls run one at a time, the child is killed with it. Where they run
  side by side, the child takes no more instances and is killed when nothing but overdue calls is left in it.
- When the child is gone, calls that it had begun end in `died` if it died by itself; all others end in
  `InstanceLostError`: they did nothing wrong.
- An instance is called again only after its last call has been answered; one that failed is made anew.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import ChildProcess
from rollart_hpc.data_plane.environment_child import CALLS_AT_ONCE
from rollart_hpc.data_plane.environment_messages import (
    Answer,
    Call,
    Close,
    End,
    Failed,
    Load,
    Loaded,
    Played,
    Refused,
    Reply,
    Reset,
    Step,
)
from rollart_hpc.data_plane.environment_spec import DIED, RAISED, STEP_TIMEOUT, EnvironmentSpec
from rollart_hpc.errors import ConfigError, EnvironmentFault
from rollart_hpc.interfaces import EnvironmentProperties

__all__ = ["EnvironmentProcess", "EnvironmentSpec", "InstanceLostError", "MovedError", "live_side_by_side"]

INSTANCES_PER_CHILD = 32
"""Of a class whose instances may live side by side."""
SLOW_S = 0.25
"""A child whose calls all take longer than this is no place for others, if there is another one. Well above what a busy
node makes of a short call: moving costs it more than waiting."""
_CHILD_MODULE = "rollart_hpc.data_plane.environment_child"
_REPLY = cast("type[Reply]", Reply)


def live_side_by_side(properties: EnvironmentProperties) -> bool:
    """Whether one child may hold many instances of such a class."""
    return properties.shares_process or properties.thread_safe


class InstanceLostError(Exception):
    """The instance ended with its child, by no doing of its own."""


class MovedError(Exception):
    """The call had not begun, and there is a better place for it than the child that it waits for."""


@dataclass(slots=True, eq=False)
class _PendingCall:
    request: Call
    timeout_s: float
    timeout_cause: str
    moves_after_s: float
    """How long it waits for a slow child before another one is the better place; infinite where it cannot move."""
    answer: asyncio.Future[Played | None]
    begun_at: float = field(default=0.0)
    is_overdue: bool = False

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class EnvironmentProcess:
    """One child process with instances of one class.

    Args:
        spec: what it runs.
        properties: what the class declares, where that is known.
        on_room: called when it may take an instance more than before.
        on_end: called once, when the process is gone.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        properties: EnvironmentProperties | None = None,
        *,
        on_room: Callable[[], None] = lambda: None,
        on_end: Callable[[EnvironmentProcess], None] = lambda _: None,
    ) -> None:
        self.key = spec.key
        self.is_sound = True
        """It takes instances: it was not killed, and no call that runs in it is overdue."""
        self.is_reserved = False
        """One instance has it alone, for a reset that may kill it."""
        self._spec = spec
        self._on_room, self._on_end = on_room, on_end
        self._declare(properties or EnvironmentProperties())
        self._waiting: deque[_PendingCall] = deque()
        self._running: dict[int, _PendingCall] = {}
        self._seated: set[int] = set()
        self._leaving: set[int] = set()
        self._empty_seats: list[int] = []
        self._num_seats = 0
        self._was_killed = False
        self._loaded_at = 0.0
        self._loaded: asyncio.Future[EnvironmentProperties] = asyncio.get_running_loop().create_future()
        # Nobody may wait for it: the calls of a child that cannot load its class fail by themselves.
        self._loaded.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        self.child = ChildProcess.start(_CHILD_MODULE, on_messages=self._receive, on_end=self._ended)
        self.child.send(codec.encode(Load(spec.entry_point, dict(spec.args))))

    def _declare(self, properties: EnvironmentProperties) -> None:
        self._calls_at_once = CALLS_AT_ONCE if properties.thread_safe else 1
        self._closes_instances = properties.sandboxed
        self.is_shared = live_side_by_side(properties)
        self.capacity = INSTANCES_PER_CHILD if self.is_shared else 1

    # --- instances ------------------------------------------------------------------------------------

    @property
    def num_seated(self) -> int:
        """Instances that somebody uses, or whose last call is not answered yet."""
        return len(self._seated)

    def is_slow(self, now: float) -> bool:
        """Whether it has begun no call for a while, since those that run take long."""
        return self._slow_for_s(now) > SLOW_S

    def _slow_for_s(self, now: float) -> float:
        """Since when it could have begun a call and did not; its start and import are not its slowness."""
        if len(self._running) < self._calls_at_once or not self._loaded_at:
            return 0.0
        return now - max(self._loaded_at, *(call.begun_at for call in self._running.values()))

    def seat(self) -> int:
        """An instance for one session; one that was used before, where there is one."""
        if self._empty_seats:
            instance = self._empty_seats.pop()
        else:
            instance = self._num_seats
            self._num_seats += 1
        self._seated.add(instance)
        return instance

    def leave(self, instance: int) -> None:
        """A session is over. The instance is free when its last call is answered; a child that runs it alone is killed
        instead."""
        self.is_reserved = False
        if instance not in self._seated:
            return
        if instance not in self._running:
            self._vacate(instance, is_spent=self._closes_instances)
            return
        self._leaving.add(instance)
        if not self.is_shared:
            self.kill()
        self._kill_if_useless()

    def _vacate(self, instance: int, *, is_spent: bool) -> None:
        """Frees an instance; a spent one is closed before."""
        if not is_spent or not self.is_sound:
            self._unseat(instance)
            return
        answer: asyncio.Future[Played | None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append(_PendingCall(Close(instance), self._spec.step_timeout_s, STEP_TIMEOUT, math.inf, answer))
        self._send_next()

    def _unseat(self, instance: int) -> None:
        self._leaving.discard(instance)
        self._seated.discard(instance)
        self._empty_seats.append(instance)
        self._kill_if_useless()
        self._on_room()

    # --- calls ----------------------------------------------------------------------------------------

    async def loaded(self, timeout_s: float) -> EnvironmentProperties:
        """What the class declares, once the child has imported it.

        Raises:
            ConfigError: it cannot, or the class is none.
            EnvironmentFault: reset_timeout, died; the child is killed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._loaded)
        except TimeoutError as error:
            self.kill()
            raise EnvironmentFault("reset_timeout", self._no_answer(timeout_s)) from error

    async def play(
        self, request: Reset | Step, timeout_s: float, timeout_cause: str, *, moves_after_s: float = math.inf
    ) -> Played:
        """Resets or steps an instance.

        Raises:
            EnvironmentFault: whatever went wrong.
            InstanceLostError: its child ended through others.
            MovedError: as `move_waiting` says; the instance is as it was.
        """
        played = await self._answer(request, timeout_s, timeout_cause, moves_after_s)
        if played is None:
            raise EnvironmentFault(DIED, f"the environment's process {self.child.pid} answered out of turn")
        return played

    async def close(self, instance: int) -> None:
        """Closes an instance; its next reset makes it anew.

        Raises:
            EnvironmentFault, InstanceLostError: as in `play`.
        """
        await self._answer(Close(instance), self._spec.step_timeout_s, STEP_TIMEOUT, math.inf)

    async def _answer(self, request: Call, timeout_s: float, timeout_cause: str, moves_after_s: float) -> Played | None:
        if self.child.has_ended or self._was_killed:
            raise InstanceLostError(f"the environment's process {self.child.pid} is gone: {self.child.exit_text}")
        answer: asyncio.Future[Played | None] = asyncio.get_running_loop().create_future()
        call = _PendingCall(request, timeout_s, timeout_cause, moves_after_s, answer)
        self._waiting.append(call)
        self._send_next()
        try:
            return await answer
        except asyncio.CancelledError:
            if call in self._waiting:
                self._waiting.remove(call)
            raise

    def move_waiting(self, now: float, has_better_place: Callable[[], bool]) -> None:
        """Ends the waits of calls that have a better place, where the calls that run take long."""
        slow_for_s = self._slow_for_s(now)
        if slow_for_s <= SLOW_S:
            return
        for call in list(self._waiting):
            if slow_for_s > call.moves_after_s and has_better_place():
                self._waiting.remove(call)
                call.fail(MovedError())

    def fail_overdue(self, now: float) -> None:
        """Ends the calls that are over their deadline."""
        overdue = [
            call for call in self._running.values() if not call.is_overdue and now - call.begun_at > call.timeout_s
        ]
        for call in overdue:
            call.is_overdue = True
            self.is_sound = False
            call.fail(EnvironmentFault(call.timeout_cause, self._no_answer(call.timeout_s)))
        if overdue:
            self._kill_if_useless()

    def ask_to_end(self) -> None:
        """Lets the environments close; the child then ends by itself."""
        self.is_sound = False
        self.child.send(codec.encode(End()))

    def kill(self) -> None:
        """Ends the child now, whatever it does."""
        self.is_sound = False
        self._was_killed = True
        self.child.kill()

    def _kill_if_useless(self) -> None:
        """Kills a child with overdue calls when nothing else runs in it and is kept from running, or is seated."""
        num_overdue = sum(call.is_overdue for call in self._running.values())
        is_stuck = num_overdue >= self._calls_at_once
        if num_overdue and (is_stuck or len(self._seated) - num_overdue <= 0):
            self.kill()

    def _send_next(self) -> None:
        while self._waiting and len(self._running) < self._calls_at_once:
            call = self._waiting.popleft()
            call.begun_at = time.monotonic()
            self._running[call.request.instance] = call
            self.child.send(codec.encode(call.request))

    def _no_answer(self, timeout_s: float) -> str:
        return f"no answer within {timeout_s:.3g} s from {self._spec.entry_point}, process {self.child.pid}"

    # --- what the child says --------------------------------------------------------------------------

    def _receive(self, messages: list[bytes]) -> None:
        try:
            for message in messages:
                self._handle(codec.decode(message, _REPLY))
        except (msgspec.MsgspecError, KeyError, asyncio.InvalidStateError) as error:
            for call in self._running.values():
                call.fail(EnvironmentFault(DIED, f"the environment's process answered out of turn: {error!r}"))
            self.kill()

    def _handle(self, reply: Reply) -> None:
        if isinstance(reply, Loaded):
            self._loaded_at = time.monotonic()
            self._declare(reply.properties)
            self._loaded.set_result(reply.properties)
        elif isinstance(reply, Refused):
            self._loaded.set_exception(ConfigError(reply.detail))
            for call in [*self._running.values(), *self._waiting]:
                call.fail(EnvironmentFault(RAISED, reply.detail))
            self.kill()
        else:
            self._answered(reply)

    def _answered(self, reply: Answer) -> None:
        call = self._running.pop(reply.instance)
        if isinstance(reply, Failed):
            call.fail(EnvironmentFault(reply.cause, reply.detail))
            if not self.is_shared:
                self.kill()
        elif not call.answer.done():
            call.answer.set_result(reply if isinstance(reply, Played) else None)
        if call.is_overdue and not self._was_killed:
            # It was late, but the child does what it should.
            self.is_sound = not any(other.is_overdue for other in self._running.values())
        self._send_next()
        if isinstance(call.request, Close):
            self._unseat(reply.instance)
        elif reply.instance in self._leaving:
            self._vacate(reply.instance, is_spent=self._closes_instances or call.is_overdue)

    def _ended(self) -> None:
        self.is_sound = False
        text = f"the environment's process {self.child.pid} ended: {self.child.exit_text}"
        if not self._loaded.done():
            self._loaded.set_exception(EnvironmentFault(DIED, text))
        for call in self._running.values():
            call.fail(InstanceLostError(text) if self._was_killed else EnvironmentFault(DIED, text))
        for call in self._waiting:
            call.fail(InstanceLostError(text))
        self._running.clear()
        self._waiting.clear()
        self._on_end(self)
