"""How much of something is at work."""

from __future__ import annotations

from rollart_hpc.simulate.clock import Clock


class Busy:
    """Simulated seconds of work so far, over all that work at the same time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._num_working, self._sum_s, self._since = 0, 0.0, 0.0

    def total_s(self) -> float:
        """Up to now."""
        now = self._clock.now()
        self._sum_s += self._num_working * (now - self._since)
        self._since = now
        return self._sum_s

    async def work(self, seconds: float) -> None:
        """Works so long."""
        self.total_s()
        self._num_working += 1
        try:
            await self._clock.sleep(seconds)
        finally:
            self.total_s()
            self._num_working -= 1
