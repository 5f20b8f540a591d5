"""TurnClock: what a turn takes, generation and step together, and its deadline.

It runs in pieces: what a turn waits for other trajectories is not its own time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rollart_hpc.errors import RollartError


class TurnTimeout(RollartError):
    """A turn was not over in time."""


class TurnClock:
    """Of one trajectory, whose turns follow each other."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.slowest_s = 0.0
        """Of the turns that are over."""
        self._spent_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The time of the block is the turn's.

        Raises:
            TurnTimeout: the turn's blocks together take longer than it may take.
        """
        began, deadline = time.perf_counter(), asyncio.timeout(self.timeout_s - self._spent_s)
        try:
            async with deadline:
                yield
        except TimeoutError:
            if deadline.expired():
                raise TurnTimeout from None
            raise
        finally:
            self._spent_s += time.perf_counter() - began

    def end(self) -> None:
        """The turn is over; the next one begins at 0."""
        self.slowest_s = max(self.slowest_s, self._spent_s)
        self._spent_s = 0.0
