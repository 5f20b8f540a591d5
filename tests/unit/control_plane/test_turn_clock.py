"""What counts as a turn's time."""

import asyncio

import pytest

from rollart_hpc.control_plane import turn_clock
from rollart_hpc.control_plane.turn_clock import TurnClock, TurnTimeout


class Clock:
    """Goes on only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(turn_clock.time, "perf_counter", lambda: self.now)

    async def play(self, turn: TurnClock, seconds: float) -> None:
        async with turn.running():
            self.now += seconds


async def test_what_passes_between_generation_and_step_is_not_the_turn_s(monkeypatch: pytest.MonkeyPatch):
    clock, turn = Clock(monkeypatch), TurnClock(1000.0)
    for generate_s, step_s in ((3.0, 4.0), (1.0, 1.0)):
        await clock.play(turn, generate_s)
        clock.now += 5000.0
        await clock.play(turn, step_s)
        turn.end()
    assert turn.slowest_s == 7.0


async def test_generation_and_step_have_one_deadline(monkeypatch: pytest.MonkeyPatch):
    clock, turn = Clock(monkeypatch), TurnClock(1000.0)
    await clock.play(turn, 1000.0)
    with pytest.raises(TurnTimeout):
        async with turn.running():
            await asyncio.Event().wait()


async def test_a_timeout_of_something_else_is_not_the_turn_s():
    with pytest.raises(TimeoutError):
        async with TurnClock(1000.0).running(), asyncio.timeout(0):
            await asyncio.Event().wait()
