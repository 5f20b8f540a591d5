"""Plain methods (``def``) of a worker: they run in a thread, and wait by `get` for what is async.

Invariants: no plain method runs on the event loop, which serves everything else of the worker. What `get` waits for
runs on the event loop, has a deadline, and ends with the call that waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar, overload

from rollart_hpc.errors import WaitTimeout, WorkerDeclarationError

DEFAULT_DEADLINE_S = 600.0
_GRACE_S = 5.0
"""Beyond a deadline, which the event loop keeps; a thread whose event loop has ended gives up after it."""

T = TypeVar("T")


class _Call:
    """One call of a plain method, as its thread sees it."""

    def __init__(self, threads: Executor) -> None:
        self.loop, self.threads = asyncio.get_running_loop(), threads
        self.waits: set[Future[Any]] = set()
        self.is_over = False

    def end(self) -> None:
        """Ends what its thread still waits for."""
        self.is_over = True
        for wait in list(self.waits):
            wait.cancel()


_call: ContextVar[_Call | None] = ContextVar("plain call", default=None)


async def run_in_thread(threads: Executor, work: Callable[[], T], *, is_one_thread: bool = False) -> T:
    """Runs ``work`` in one of the threads; in it `get` waits for what is async.

    A cancelled call ends what its thread waits for; the thread itself goes on to the end of the method.

    Raises:
        WorkerDeclarationError: a plain method in the one thread waits for this, which would wait for that thread.
    """
    waiting = _call.get()  # of the thread that made this coroutine run by `get`
    if is_one_thread and waiting is not None and waiting.threads is threads and not waiting.is_over:
        raise WorkerDeclarationError(
            "a plain method waits by get() for what needs the thread that it runs in; make it an async method and await"
        )
    call, context = _Call(threads), copy_context()
    context.run(_call.set, call)

    def run() -> T:
        try:
            return context.run(work)
        except StopIteration as error:
            raise RuntimeError("the method raised StopIteration") from error  # a future cannot carry it

    try:
        return await call.loop.run_in_executor(threads, run)
    finally:
        call.end()


@overload
def get(value: list[Awaitable[T]], timeout: float | None = None) -> list[T]: ...
@overload
def get(value: Awaitable[T], timeout: float | None = None) -> T: ...
@overload
def get(value: T, timeout: float | None = None) -> T: ...
def get(value: Any, timeout: float | None = None) -> Any:
    """What an awaitable gives, or each one of a list, waited for in a plain method; other values are what they are.

    Those of a list run side by side. The first error is raised, and the others are ended.

    Args:
        value: such as ``self.reward_proxy(prompt)``.
        timeout: seconds; 600 when it is left out.

    Raises:
        WaitTimeout: it took longer.
        WorkerDeclarationError: called in an async method, or outside the methods of a worker: await it there.
    """
    values: list[Any] = value if isinstance(value, list) else [value]
    awaitables = [one for one in values if inspect.isawaitable(one)]
    if awaitables:
        results = iter(_wait(awaitables, DEFAULT_DEADLINE_S if timeout is None else timeout))
        values = [next(results) if inspect.isawaitable(one) else one for one in values]
    return values if isinstance(value, list) else values[0]


def _wait(awaitables: Sequence[Awaitable[Any]], deadline_s: float) -> list[Any]:
    call = _call.get()
    if call is None or _is_on_event_loop():
        for one in awaitables:
            if inspect.iscoroutine(one):
                one.close()  # it will not be awaited, which has been said then
        raise WorkerDeclarationError(
            "get() waits in the plain methods (`def`) of a worker alone; here await the value instead of get()"
        )
    waiting = asyncio.run_coroutine_threadsafe(_all_within(awaitables, deadline_s), call.loop)
    call.waits.add(waiting)
    if call.is_over:
        waiting.cancel()
    try:
        return waiting.result(deadline_s + _GRACE_S)
    finally:
        waiting.cancel()
        call.waits.discard(waiting)


async def _all_within(awaitables: Sequence[Awaitable[Any]], deadline_s: float) -> list[Any]:
    running = [asyncio.ensure_future(one) for one in awaitables]
    deadline = asyncio.timeout(deadline_s)
    try:
        async with deadline:
            return await asyncio.gather(*running)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise WaitTimeout("what get() was given", f"{awaitables[0]!r:.80}", deadline_s) from None
    finally:
        for one in running:
            one.cancel()


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
