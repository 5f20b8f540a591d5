"""The parent's side of one reward child (`rollart_hpc.rewards.reward_child`) and the calls that it holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import ChildProcess
from rollart_hpc.errors import RewardFault
from rollart_hpc.rewards.reward_child import Failed, Ready, Refused, Scored, Started
from rollart_hpc.types import Score

_CHILD_MODULE = "rollart_hpc.rewards.reward_child"
_Reply = Ready | Refused | Started | Scored | Failed
_REPLY = cast("type[_Reply]", _Reply)


@dataclass(slots=True)
class PendingCall:
    """One call of `LocalRewardPool.score` until it has its answer."""

    call_id: int
    message: bytes
    answer: asyncio.Future[Score]
    queued_at: float = field(default_factory=time.monotonic)
    started_at: float = 0.0
    """When its function started in the child that holds it; 0 before."""
    is_suspect: bool = False
    """It had started in a child that died."""

    def fail(self, cause: str, detail: str) -> None:
        """Ends the call with a fault, unless it has ended."""
        if not self.answer.done():
            self.answer.set_exception(RewardFault(cause, detail))


class RewardProcess:
    """One child process.

    Args:
        load: the encoded first message, naming the functions.
        on_room: called when the child may take more calls than before.
        on_end: called once, when the process is gone; `calls` then holds what it had not answered.
    """

    def __init__(self, load: bytes, *, on_room: Callable[[], None], on_end: Callable[[RewardProcess], None]) -> None:
        self.calls: dict[int, PendingCall] = {}
        self.is_ready = False
        self.was_killed = False
        self.refusal = ""
        """Why the functions cannot be imported."""
        self.start_is_over = asyncio.Event()
        self._on_room = on_room
        self._on_end = on_end
        self._begin = time.monotonic()
        self.child = ChildProcess.start(_CHILD_MODULE, on_messages=self._receive, on_end=self._ended)
        self.child.send(load)

    @property
    def accepts_calls(self) -> bool:
        """It is ready, not about to end, and holds no suspect, which runs alone."""
        return self.is_ready and not self.was_killed and not any(call.is_suspect for call in self.calls.values())

    def take(self, call: PendingCall) -> None:
        """Sends one call to the child."""
        self.calls[call.call_id] = call
        self.child.send(call.message)

    def kill(self) -> None:
        """Ends the process; `on_end` follows."""
        self.was_killed = True
        self.child.kill()

    def kill_if_overdue(self, now: float, *, call_timeout_s: float, start_timeout_s: float) -> None:
        """Ends the process when a call, or its own start, has passed its deadline; such calls end in a fault."""
        if self.was_killed:
            return
        if not self.is_ready and now - self._begin > start_timeout_s:
            self.kill()
        for call in self.calls.values():
            if call.started_at and now - call.started_at > call_timeout_s:
                call.fail("timeout", f"the reward function gave no answer within {call_timeout_s:g} s")
                self.kill()

    def _receive(self, messages: list[bytes]) -> None:
        try:
            for message in messages:
                self._handle(codec.decode(message, _REPLY))
        except (msgspec.MsgspecError, KeyError):
            self.kill()
        self._on_room()

    def _handle(self, reply: _Reply) -> None:
        if isinstance(reply, Started):
            self.calls[reply.call_id].started_at = time.monotonic()
        elif isinstance(reply, Ready):
            self.is_ready = True
            self.start_is_over.set()
        elif isinstance(reply, Refused):
            self.refusal = reply.detail
            self.start_is_over.set()
            self.kill()
        else:
            call = self.calls.pop(reply.call_id)
            if isinstance(reply, Failed):
                call.fail(reply.cause, reply.detail)
            elif not call.answer.done():
                call.answer.set_result(reply.score)

    def _ended(self) -> None:
        self.start_is_over.set()
        self._on_end(self)
