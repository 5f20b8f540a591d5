"""Simulated time goes so much faster than the real one."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from rollart_hpc.simulate.clock import Clock


async def wait_in_every_way() -> None:
    clock, loop = Clock(1000), asyncio.get_running_loop()
    began, began_s = time.monotonic(), clock.now()
    await clock.sleep(10.0)
    slept_s = clock.now() - began_s
    assert slept_s <= (time.monotonic() - began) * 1000
    assert slept_s >= 9.0
    for seconds in (0.4, 1.4, 3.0):
        fired: asyncio.Future[float] = loop.create_future()
        due_s = clock.now() + seconds
        clock.call_later(seconds, lambda fired=fired: fired.set_result(clock.now()))
        assert await fired >= due_s
    before_s = clock.now()
    await asyncio.to_thread(clock.block, 10.0)
    assert clock.now() - before_s >= 10.0


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_waiting_is_shorter_by_the_scale_and_no_call_is_early(runner: Callable[[Coroutine[Any, Any, None]], None]):
    runner(wait_in_every_way())


async def wait_on_a_busy_loop() -> None:
    clock, loop = Clock(1000), asyncio.get_running_loop()
    for part in range(60):
        fired: asyncio.Future[float] = loop.create_future()
        due_s = clock.now() + 0.9
        clock.call_later(0.9, lambda fired=fired: fired.set_result(clock.now()))
        clock.block(0.005 * part)  # the loop looks at the time again when a millisecond may have begun
        assert await fired >= due_s


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_no_call_is_early_when_the_loop_was_busy(runner: Callable[[Coroutine[Any, Any, None]], None]):
    runner(wait_on_a_busy_loop())


async def test_a_cancelled_call_is_not_made():
    clock = Clock(1000)
    clock.call_later(1.0, lambda: pytest.fail("it was cancelled")).cancel()
    await clock.sleep(2.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_time_that_does_not_go_on_is_refused(scale: float):
    with pytest.raises(ValueError, match="expected more than 0"):
        Clock(scale)
