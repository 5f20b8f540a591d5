"""The child process that runs reward functions: ``python -m rollart_hpc.rewards.reward_child``.

Consumes calls from its parent's `LocalRewardPool`, many at a time on one event loop, and answers each when it
finishes; ends when the parent's end of the socket closes. Invariant: the start of a call is on the wire before
the user's code runs, so the parent knows which call hangs or kills the process.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import traceback
from collections.abc import Callable
from typing import cast

import msgspec
import numpy as np

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import enter
from rollart_hpc.bus.frames import Channel
from rollart_hpc.config.resolve import resolve
from rollart_hpc.errors import ConfigError, RewardFault
from rollart_hpc.types import Episode, Score

_log = logging.getLogger(__name__)
_MAX_REWARD = 1e30
"""Far below what float32 holds; a NaN fails the comparison too."""


class Load(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """First message: the entry point of each task's function. Answered by `Ready` or `Refused`."""

    functions: dict[str, str]


class Call(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Score one episode. Answered by `Started`, then `Scored` or `Failed`."""

    call_id: int
    task: str
    episode: Episode


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All functions are imported."""


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A function cannot be imported; the text is that of a `ConfigError`."""

    detail: str


class Started(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The function is about to run."""

    call_id: int


class Scored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The function gave a score."""

    call_id: int
    score: Score


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The function gave none; the causes are those of `RewardFault`."""

    call_id: int
    cause: str
    detail: str


_Request = Load | Call
_REQUEST = cast("type[_Request]", _Request)


class _Server:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._functions: dict[str, Callable[[Episode], object]] = {}
        # Nothing is worth finishing when the parent is gone, and user code may hold threads.
        self._channel = Channel(enter(), self._receive, on_end=lambda: os._exit(0))

    def _receive(self, messages: list[bytes]) -> None:
        for message in messages:
            try:
                request = codec.decode(message, _REQUEST)
            except msgspec.MsgspecError:
                _log.exception("unreadable message from the parent")
                os._exit(1)
            if isinstance(request, Call):
                self._tasks.create_task(self._answer(request))
            else:
                self._channel.send(codec.encode(self._load(request)))

    def _load(self, request: Load) -> Ready | Refused:
        try:
            self._functions = {task: resolve(entry_point) for task, entry_point in request.functions.items()}
        except ConfigError as error:
            return Refused(str(error))
        return Ready()

    async def _answer(self, call: Call) -> None:
        self._channel.send(codec.encode(Started(call.call_id)))
        self._channel.flush()
        try:
            reply = Scored(call.call_id, await _score(self._functions[call.task], call.episode))
        except RewardFault as fault:
            reply = Failed(call.call_id, fault.cause, str(fault).removeprefix(f"{fault.cause}: "))
        self._channel.send(codec.encode(reply))


async def _score(function: Callable[[Episode], object], episode: Episode) -> Score:
    try:
        value = function(episode)
        if not inspect.isawaitable(value):
            raise RewardFault("bad_value", "the reward function is not async; write `async def`")
        value = await value
    except RewardFault:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        _log.warning("a reward function raised", exc_info=True)
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise RewardFault("raised", f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})") from error
    return checked_score(value)


def checked_score(value: object) -> Score:
    """A reward function's result as a score.

    Raises:
        RewardFault: bad_value, for anything but a finite number or a `Score` of finite reward.
    """
    if isinstance(value, int | float | np.integer | np.floating):
        value = Score(reward=float(value))
    if not isinstance(value, Score):
        raise RewardFault("bad_value", f"got {type(value).__name__} {value!r:.80}; expected a finite number or a Score")
    try:
        score = codec.decode(codec.encode(value), Score)
    except (msgspec.ValidationError, TypeError) as error:
        raise RewardFault("bad_value", f"got a Score whose fields have wrong types: {error}") from error
    if not abs(score.reward) <= _MAX_REWARD:
        raise RewardFault("bad_value", f"got {score.reward}; expected a finite number of at most +-{_MAX_REWARD:.0e}")
    return score


async def _serve() -> None:
    async with asyncio.TaskGroup() as tasks:
        _Server(tasks)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
