"""The parent's side of one environment child (`rollart_hpc.data_plane.environment_child`).

Invariants: at most one request is in flight; a process after any fault, or after a call that its caller left,
is killed and never used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import ChildProcess
from rollart_hpc.config.schema import TaskSection
from rollart_hpc.data_plane.environment_child import (
    NOT_LOADED,
    Close,
    Failed,
    Load,
    Loaded,
    Played,
    Reply,
    Request,
    Reset,
    Step,
)
from rollart_hpc.data_plane.environment_instance import Transition
from rollart_hpc.errors import ConfigError, EnvironmentFault

_CHILD_MODULE = "rollart_hpc.data_plane.environment_child"
_REPLY = cast("type[Reply]", Reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What a host must know of one task."""

    entry_point: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reset_timeout_s: float
    """Of a reset, with the start of a process, the import and the constructor where they are needed."""
    step_timeout_s: float

    @classmethod
    def of_task(cls, task: TaskSection) -> EnvironmentSpec:
        """The spec that a task's section of the config describes."""
        return cls(
            entry_point=task.environment,
            args=task.environment_args,
            reset_timeout_s=task.reset_timeout_s,
            step_timeout_s=task.step_timeout_s,
        )

    @property
    def key(self) -> bytes:
        """Equal for tasks that can share environments."""
        return codec.encode((self.entry_point, dict(self.args)))


class EnvironmentProcess:
    """One child process and the one request that it may be working on."""

    def __init__(self, spec: EnvironmentSpec, on_end: Callable[[EnvironmentProcess], None]) -> None:
        self.key = spec.key
        self.is_loaded = False
        self._spec = spec
        self._on_end = on_end
        self._answer: asyncio.Future[Reply] | None = None
        self._is_sound = True
        self.child = ChildProcess.start(_CHILD_MODULE, on_messages=self._receive, on_end=self._ended)

    @property
    def is_reusable(self) -> bool:
        """Nothing went wrong and no call is in flight."""
        return self._is_sound and self._answer is None

    async def load(self, timeout_s: float) -> Loaded:
        """Lets the child import the class.

        Raises:
            ConfigError: it cannot.
            EnvironmentFault: reset_timeout, died.
        """
        reply = await self._call(Load(self._spec.entry_point, dict(self._spec.args)), timeout_s, "reset_timeout")
        if not isinstance(reply, Loaded):
            raise self._refusal(reply)
        self.is_loaded = True
        return reply

    async def play(self, request: Reset | Step, timeout_s: float, timeout_cause: str) -> Transition:
        """Resets or steps the environment.

        Raises:
            EnvironmentFault: whatever went wrong; the child is then killed.
        """
        reply = await self._call(request, timeout_s, timeout_cause)
        if not isinstance(reply, Played):
            raise self._refusal(reply)
        return reply.transition

    def ask_to_end(self) -> None:
        """Lets the environment close; the child then ends by itself."""
        self.child.send(codec.encode(Close()))

    def kill(self) -> None:
        """Ends the child now, whatever it does."""
        self._is_sound = False
        self.child.kill()

    async def _call(self, request: Request, timeout_s: float, timeout_cause: str) -> Reply:
        if self.child.has_ended or not self.is_reusable:
            raise EnvironmentFault("died", f"the environment's process is gone: {self.child.exit_text}")
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self.child.send(codec.encode(request))
            async with asyncio.timeout(timeout_s):
                reply = await self._answer
        except TimeoutError as error:
            whom = f"{self._spec.entry_point}, process {self.child.pid}"
            raise EnvironmentFault(timeout_cause, f"no answer within {timeout_s:.3g} s from {whom}") from error
        finally:
            if not self._answer.done() or self._answer.cancelled() or self._answer.exception() is not None:
                self.kill()
            self._answer = None
        return reply

    def _refusal(self, reply: Reply) -> ConfigError | EnvironmentFault:
        self.kill()
        if not isinstance(reply, Failed):
            return EnvironmentFault("died", f"the environment's process answered out of turn: {type(reply).__name__}")
        if reply.cause == NOT_LOADED:
            return ConfigError(reply.detail)
        return EnvironmentFault(reply.cause, reply.detail)

    def _receive(self, messages: list[bytes]) -> None:
        for message in messages:
            if self._answer is None or self._answer.done():
                self.kill()
                return
            try:
                self._answer.set_result(codec.decode(message, _REPLY))
            except msgspec.MsgspecError as error:
                self._answer.set_exception(EnvironmentFault("died", f"unreadable answer: {error}"))

    def _ended(self) -> None:
        self._is_sound = False
        if self._answer is not None and not self._answer.done():
            detail = f"the environment's process {self.child.pid} ended: {self.child.exit_text}"
            self._answer.set_exception(EnvironmentFault("died", detail))
        self._on_end(self)
