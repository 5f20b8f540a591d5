"""The child process that runs reward functions: ``python -m rollart_hpc.rewards.reward_child``.

Consumes calls from its parent's `LocalRewardPool`, many at a time on one event loop, and answers each when it
finishes; ends when the parent's end of the socket closes. Invariant: before the user's code runs, at the start of a
call and again after each of its waits, the call's id is on the wire, so that the parent knows which call hangs, holds
up the loop or kills the process.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, cast

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import enter
from rollart_hpc.bus.frames import Channel
from rollart_hpc.config.resolve import resolve
from rollart_hpc.errors import ConfigError, RewardFault, raised_text
from rollart_hpc.rewards.checked_score import checked_score
from rollart_hpc.rewards.payload import TokenEpisode
from rollart_hpc.types import Episode, Score

_log = logging.getLogger(__name__)


class Function(msgspec.Struct, frozen=True, array_like=True):
    """A task's reward function."""

    entry_point: str
    arguments: dict[str, Any]
    """Keyword arguments, after the episode."""


class Load(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """First message: each task's function. Answered by `Ready` or `Refused`."""

    functions: dict[str, Function]


class Call(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Score one episode. Answered by `Started`, `Resumed` after each wait, then `Scored` or `Failed`."""

    call_id: int
    task: str
    episode: Episode | None
    in_tokens: TokenEpisode | None = None
    """In place of the episode, for a function that is served."""


class Cancel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Forget a call; one that has not started does not start, and none is answered any more."""

    call_id: int


class Ping(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answered by `Pong` when the loop is free."""


class Pong(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The loop is free."""


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All functions are imported."""


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A function cannot be imported or called; the text is that of a `ConfigError`."""

    detail: str


class Started(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The function is about to run."""

    call_id: int


class Resumed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The function goes on after a wait."""

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


_Request = Load | Call | Cancel | Ping
_REQUEST = cast("type[_Request]", _Request)
_AnyEpisode = Episode | TokenEpisode


class _Server:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._functions: dict[str, Callable[[_AnyEpisode], object]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        # Nothing is worth finishing when the parent is gone, and user code may hold threads.
        self._channel = Channel(enter(), self._receive, on_end=lambda: os._exit(0))

    def _receive(self, messages: list[bytes]) -> None:
        for message in messages:
            try:
                self._handle(codec.decode(message, _REQUEST))
            except msgspec.MsgspecError:
                _log.exception("unreadable message from the parent")
                os._exit(1)

    def _handle(self, request: _Request) -> None:
        if isinstance(request, Call):
            self._running[request.call_id] = self._tasks.create_task(self._answer(request))
        elif isinstance(request, Cancel):
            if task := self._running.pop(request.call_id, None):
                task.cancel()
        elif isinstance(request, Ping):
            self._channel.send(codec.encode(Pong()))
        else:
            self._channel.send(codec.encode(self._load(request)))

    def _load(self, request: Load) -> Ready | Refused:
        try:
            self._functions = {task: load_function(function) for task, function in request.functions.items()}
        except ConfigError as error:
            return Refused(str(error))
        return Ready()

    async def _answer(self, call: Call) -> None:
        self._tell(Started(call.call_id))
        episode = call.in_tokens if call.episode is None else call.episode
        if episode is None:
            raise AssertionError("a call without an episode")
        resumed = partial(self._tell, Resumed(call.call_id))
        try:
            reply = Scored(call.call_id, await _score(self._functions[call.task], episode, resumed))
        except RewardFault as fault:
            reply = Failed(call.call_id, _sendable(fault.cause), _sendable(str(fault).removeprefix(f"{fault.cause}: ")))
        # A call that was cancelled may be back under its id, in another task.
        if self._running.get(call.call_id) is asyncio.current_task():
            del self._running[call.call_id]
            self._channel.send(codec.encode(reply))

    def _tell(self, news: Started | Resumed) -> None:
        self._channel.send(codec.encode(news))
        self._channel.flush()


def _sendable(text: object) -> str:
    """Text of users may hold halves of characters, which no message takes."""
    return str(text).encode(errors="backslashreplace").decode()


def load_function(function: Function) -> Callable[[_AnyEpisode], object]:
    """The function with its arguments.

    Raises:
        ConfigError: it cannot be imported, is not async, or does not take the arguments.
    """
    found = resolve(function.entry_point)
    if inspect.isroutine(found) and not inspect.iscoroutinefunction(found):
        raise ConfigError(f"{function.entry_point} is not async; write `async def`, and `return` for `yield`")
    try:
        inspect.signature(found).bind(None, **function.arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{function.entry_point} cannot be called with an episode and the arguments {function.arguments}: {error}"
        ) from error
    return partial(found, **function.arguments)


async def _score(function: Callable[[_AnyEpisode], object], episode: _AnyEpisode, resumed: Callable[[], None]) -> Score:
    try:
        value = function(episode)
        if not inspect.isawaitable(value):
            raise RewardFault("bad_value", "the reward function gave nothing to await; write `async def`")
        value = await _announced(cast("Awaitable[object]", value), resumed)
    except RewardFault:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # by the parent; the user's code may raise the same
        _log.warning("a reward function raised", exc_info=True)
        raise RewardFault("raised", raised_text(error)) from error
    return checked_score(value)


@types.coroutine
def _announced(work: Awaitable[object], resumed: Callable[[], None]) -> Generator[Any, Any, object]:
    """Awaits ``work``; calls ``resumed`` whenever it goes on after a wait."""
    steps = work.__await__()
    proceed = partial(steps.send, None)
    while True:
        try:
            waited_for = proceed()
        except StopIteration as end:
            return end.value
        try:
            value = yield waited_for
            proceed = partial(steps.send, value)
        except BaseException as error:
            proceed = partial(steps.throw, error)
        resumed()


async def _serve() -> None:
    async with asyncio.TaskGroup() as tasks:
        _Server(tasks)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
