"""Whether the run is to stop: asked for by signals, by any process of the attempt, or by the end of its time."""

from __future__ import annotations

import asyncio
import time


class StopRequest:
    """Of one leader, over all its attempts; the first asks, the others change nothing."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self.reason = ""
        self.at = 0.0
        """Seconds since the epoch."""

    @property
    def is_set(self) -> bool:
        """Whether it was asked for."""
        return self._requested.is_set()

    def request(self, reason: str, at: float | None = None) -> None:
        """Asks for an orderly end of the run; ``at`` is when it was known first, now when absent."""
        if not self.is_set:
            self.reason, self.at = reason, time.time() if at is None else at
            self._requested.set()

    async def wait(self) -> None:
        """Returns when it was asked for."""
        await self._requested.wait()

    async def comes_within(self, seconds: float) -> bool:
        """Whether it is asked for within that time."""
        return await comes_within(self._requested, seconds)


async def comes_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether an event is set within that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
