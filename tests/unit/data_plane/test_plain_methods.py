"""Plain methods run in threads, and wait there for what is async."""

import asyncio
import gc
import threading
import warnings
from collections.abc import Awaitable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from rollart_hpc.data_plane.plain_methods import get, run_in_thread
from rollart_hpc.errors import RewardFault, WaitTimeout, WorkerDeclarationError
from rollart_hpc.rewards.serverless_function import Promise, ServerlessFunction

AT_ONCE_S = 10


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


async def soon(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_plain_method_gets_what_is_async_and_what_is_not(threads: ThreadPoolExecutor):
    def method() -> list[Any]:
        return [get(soon(1)), get(2), get([soon(3), 4, Promise(lambda: soon(5))]), get([6]), get([])]

    assert await run_in_thread(threads, method) == [1, 2, [3, 4, 5], [6], []]


async def test_those_of_a_list_run_side_by_side(threads: ThreadPoolExecutor):
    met = asyncio.Barrier(3)
    assert sorted(await run_in_thread(threads, lambda: get([met.wait() for _ in range(3)], timeout=AT_ONCE_S))) == [
        0, 1, 2,
    ]  # fmt: skip


async def test_what_is_waited_for_runs_on_the_worker_s_event_loop(threads: ThreadPoolExecutor):
    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert await run_in_thread(threads, lambda: get(where())) is asyncio.get_running_loop()
    assert await run_in_thread(threads, threading.current_thread) is not threading.current_thread()


async def test_an_error_is_the_waiter_s_and_ends_the_others_of_the_list(threads: ThreadPoolExecutor):
    ended = asyncio.Event()

    async def until_ended() -> None:
        try:
            await never()
        finally:
            ended.set()

    async def fail() -> None:
        raise ValueError("out of luck")

    with pytest.raises(ValueError, match="out of luck"):
        await run_in_thread(threads, lambda: get([until_ended(), fail()]))
    await asyncio.wait_for(ended.wait(), AT_ONCE_S)


async def test_a_wait_has_a_deadline(threads: ThreadPoolExecutor):
    with pytest.raises(WaitTimeout, match=r"waited 0\.01 s for what get\(\) was given from <coroutine object never"):
        await run_in_thread(threads, lambda: get(never(), timeout=0.01))

    async def own_timeout() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await run_in_thread(threads, lambda: get(own_timeout()))


async def test_a_cancelled_call_ends_what_its_thread_waits_for(threads: ThreadPoolExecutor):
    waits, raised = asyncio.Event(), ContextVar[list[BaseException]]("raised")
    raised.set([])

    async def wait() -> None:
        waits.set()
        await never()

    def method() -> None:
        for _ in range(2):
            try:
                get(wait())
            except CancelledError as error:
                raised.get().append(error)

    calling = asyncio.create_task(run_in_thread(threads, method))
    await asyncio.wait_for(waits.wait(), AT_ONCE_S)
    calling.cancel()
    await asyncio.wait({calling})
    # The thread is free when it takes the next one.
    await asyncio.wait_for(asyncio.gather(*(run_in_thread(threads, int) for _ in range(2))), AT_ONCE_S)
    await asyncio.to_thread(threads.shutdown)
    assert len(raised.get()) == 2


async def test_a_method_that_would_wait_for_its_own_thread_is_told_and_not_left_waiting():
    with ThreadPoolExecutor(1) as one:

        async def again() -> int:
            return await run_in_thread(one, lambda: 1, is_one_thread=True)

        with pytest.raises(WorkerDeclarationError, match="make it an async method and await"):
            await run_in_thread(one, lambda: get(again(), timeout=AT_ONCE_S), is_one_thread=True)
        assert await again() == 1
        # What a plain method returns is awaited when its thread is free.
        assert await (await run_in_thread(one, again, is_one_thread=True)) == 1


@pytest.mark.parametrize("make", [lambda: soon(1), lambda: [soon(1), 2], lambda: Promise(lambda: soon(1))])
async def test_get_on_an_event_loop_says_await_and_leaves_nothing_behind(make: Any):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(WorkerDeclarationError, match="here await the value instead of get"):
            get(make())
        gc.collect()
    assert get(3) == 3


async def test_get_in_what_a_plain_method_waits_for_says_await_too(threads: ThreadPoolExecutor):
    async def wrong() -> int:
        return get(soon(1), timeout=0.1)

    with pytest.raises(WorkerDeclarationError, match="here await the value"):
        await run_in_thread(threads, lambda: get(wrong()))


def test_get_outside_a_worker_says_so():
    with pytest.raises(WorkerDeclarationError, match=r"get\(\) waits in the plain methods .* of a worker alone"):
        get(soon(1))


async def test_a_method_that_raises_stop_iteration_ends_in_an_error(threads: ThreadPoolExecutor):
    empty: Iterator[int] = iter([])
    with pytest.raises(RuntimeError, match="the method raised StopIteration"):
        await asyncio.wait_for(run_in_thread(threads, lambda: next(empty)), AT_ONCE_S)


async def test_a_promise_is_kept_once_and_not_made_when_nobody_waits():
    made: list[int] = []

    async def make() -> int:
        made.append(1)
        return len(made)

    promise: Awaitable[int] = Promise(make)
    assert made == []
    assert [await promise, await promise] == [1, 1]
    Promise(make)
    gc.collect()
    assert made == [1]


async def test_a_declared_url_without_a_trigger_says_where_to_give_it():
    function = ServerlessFunction("fc://xxx.xxx", timeout_s=1)
    with pytest.raises(RewardFault, match=r'in the config: \[serverless\] "fc://xxx\.xxx" = "https://'):
        await function("prompt")
