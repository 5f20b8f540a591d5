"""The parent's side of one reward child (`rollart_hpc.rewards.reward_child`) and the calls that it holds.

The child's event loop is stuck when it does not answer a ping: one call blocks it. What blocks is the call that was
the last one to say that its code runs. It stays, its deadline kills the process; the others can be had from here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import ChildProcess
from rollart_hpc.errors import RewardFault
from rollart_hpc.rewards.reward_child import Cancel, Failed, Ping, Pong, Ready, Refused, Resumed, Scored, Started
from rollart_hpc.types import Score

_log = logging.getLogger(__name__)
_CHILD_MODULE = "rollart_hpc.rewards.reward_child"
_PING_AFTER_S = 0.05
_STUCK_AFTER_S = 0.1
_MAX_UNSTARTED = 8
"""Enough to keep a child busy; all of them are held up when one blocks."""
_PING = codec.encode(Ping())
_Reply = Ready | Refused | Started | Resumed | Pong | Scored | Failed
_REPLY = cast("type[_Reply]", _Reply)


@dataclass(slots=True)
class PendingCall:
    """One call of `LocalRewardPool.score` until it has its answer."""

    call_id: int
    message: bytes
    answer: asyncio.Future[Score]
    queued_at: float = field(default_factory=time.monotonic)
    is_suspect: bool = False
    """It had started in a child that died."""
    was_held_up: bool = False
    """It had waited to start behind a call that blocked its child."""

    def fail(self, cause: str, detail: str) -> None:
        """Ends the call with a fault, unless it has ended."""
        if not self.answer.done():
            self.answer.set_exception(RewardFault(cause, detail))


@dataclass(slots=True)
class Held:
    """A call in one child."""

    call: PendingCall
    started_at: float = 0.0
    """When its function started there; 0 before."""
    is_elsewhere: bool = False
    """Another child has it as well, and the first answer counts: the end of this one does not send it again."""


class RewardProcess:
    """One child process.

    Args:
        load: the encoded first message, naming the functions.
        on_room: called when the child may take more calls than before.
        on_end: called once, when the process is gone; `calls` then holds what it had not answered.
    """

    def __init__(self, load: bytes, *, on_room: Callable[[], None], on_end: Callable[[RewardProcess], None]) -> None:
        self.calls: dict[int, Held] = {}
        self.is_ready = False
        self.was_killed = False
        self.refusal = ""
        """Why the functions cannot be imported."""
        self.start_is_over = asyncio.Event()
        self._on_room = on_room
        self._on_end = on_end
        self._begin = self._heard_at = time.monotonic()
        self._pinged_at = 0.0
        """When it was asked for a sign of life that it has not given; 0 when none is due."""
        self._running_id = 0
        """The call that was the last one to say that its code runs."""
        self._num_unstarted = 0
        self.child = ChildProcess.start(_CHILD_MODULE, on_messages=self._receive, on_end=self._ended)
        self.child.send(load)

    @property
    def is_stuck(self) -> bool:
        """Its event loop does not answer."""
        return self.stuck_s > _STUCK_AFTER_S

    @property
    def stuck_s(self) -> float:
        """For how long it has not answered; 0 when it is not asked."""
        return time.monotonic() - self._pinged_at if self._pinged_at else 0.0

    @property
    def quiet_s(self) -> float:
        """Since it was last heard."""
        return time.monotonic() - self._heard_at

    @property
    def is_able(self) -> bool:
        """It runs what it gets."""
        return self.is_ready and not self.was_killed and not self.is_stuck

    @property
    def has_held_up(self) -> bool:
        """Among its calls are some that were held up in another child, and may block this one."""
        return any(held.call.was_held_up for held in self.calls.values())

    def has_room(self, most: int) -> bool:
        """Whether it takes a call now, with at most ``most`` in all; beside a suspect it takes none."""
        return (
            self.is_able
            and len(self.calls) < most
            and self._num_unstarted < _MAX_UNSTARTED
            and not any(held.call.is_suspect for held in self.calls.values())
        )

    def take(self, call: PendingCall) -> None:
        """Sends one call to the child."""
        if not self.calls:
            self._heard_at = time.monotonic()
        self.calls[call.call_id] = Held(call)
        self._num_unstarted += 1
        self.child.send(call.message)

    def take_back_unstarted(self) -> list[PendingCall]:
        """The calls that have not started, which this child forgets."""
        unstarted = [held.call for held in self.calls.values() if not held.started_at]
        for call in unstarted:
            self._forget(call.call_id)
        self._num_unstarted = 0
        return unstarted

    def share_waiting(self) -> list[PendingCall]:
        """The calls that wait for something behind the one that blocks; they go on here if this child does."""
        waiting = [
            held
            for call_id, held in self.calls.items()
            if held.started_at and call_id != self._running_id and not held.is_elsewhere and not held.call.is_suspect
        ]
        for held in waiting:
            held.is_elsewhere = True
        return [held.call for held in waiting]

    def kill(self) -> None:
        """Ends the process; `on_end` follows."""
        self.was_killed = True
        self.child.kill()

    def check(self, now: float, *, call_timeout_s: float, start_timeout_s: float, silence_timeout_s: float) -> None:
        """Asks for a sign of life where one is due; ends the process when a call, its start or the sign is overdue.

        An overdue call ends in a fault; the others can be sent to another process.
        """
        if self.was_killed:
            return
        if not self.is_ready:
            if now - self._begin > start_timeout_s:
                self.kill()
            return
        for call_id, held in list(self.calls.items()):
            if held.started_at and now - held.started_at > call_timeout_s:
                self._end_overdue(call_id, held, call_timeout_s)
        none_runs = not any(held.started_at for held in self.calls.values())
        if self._pinged_at and now - self._pinged_at > (silence_timeout_s if none_runs else call_timeout_s):
            _log.warning(
                "reward process %d has not answered for %g s and is killed; no call says that it blocks it",
                self.child.pid, self.stuck_s,
            )  # fmt: skip
            self.kill()
        elif self.calls and not self._pinged_at and now - self._heard_at > _PING_AFTER_S:
            self._pinged_at = now
            self.child.send(_PING)

    def _end_overdue(self, call_id: int, held: Held, timeout_s: float) -> None:
        if self.is_stuck and call_id != self._running_id:
            return  # it is late through another's fault, which is made good elsewhere
        if held.is_elsewhere:
            self._forget(call_id)
            return
        held.call.fail("timeout", f"the reward function gave no answer within {timeout_s:g} s")
        self.kill()

    def _forget(self, call_id: int) -> None:
        del self.calls[call_id]
        self.child.send(codec.encode(Cancel(call_id)))

    def _receive(self, messages: list[bytes]) -> None:
        self._heard_at, self._pinged_at = time.monotonic(), 0.0
        try:
            for message in messages:
                self._handle(codec.decode(message, _REPLY))
        except msgspec.MsgspecError:
            self.kill()
        self._on_room()

    def _handle(self, reply: _Reply) -> None:
        if isinstance(reply, Ready):
            self.is_ready = True
            self.start_is_over.set()
        elif isinstance(reply, Refused):
            self.refusal = reply.detail
            self.start_is_over.set()
            self.kill()
        elif not isinstance(reply, Pong) and (held := self.calls.get(reply.call_id)):
            self._handle_call(held, reply)

    def _handle_call(self, held: Held, reply: Started | Resumed | Scored | Failed) -> None:
        if isinstance(reply, Started | Resumed):
            self._running_id = reply.call_id
            if not held.started_at:
                held.started_at = time.monotonic()
                self._num_unstarted -= 1
            return
        del self.calls[reply.call_id]
        if isinstance(reply, Failed):
            held.call.fail(reply.cause, reply.detail)
        elif not held.call.answer.done():
            held.call.answer.set_result(reply.score)

    def _ended(self) -> None:
        self.start_is_over.set()
        self._on_end(self)
