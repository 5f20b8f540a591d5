"""Time that goes faster than the real one by a fixed factor: what everything emulated waits by."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable


class Clock:
    """Simulated seconds since it was made; one simulated second is 1 / scale real ones.

    Waiting is as late as the event loop is, times the scale: who has to be exact reckons with the time that was due.
    """

    def __init__(self, scale: float) -> None:
        """``scale``: simulated seconds in a real one, above 0."""
        if not scale > 0:
            raise ValueError(f"the scale of time is {scale}; expected more than 0")
        self._scale, self._began = scale, time.monotonic()

    def now(self) -> float:
        """Simulated seconds since the clock was made."""
        return (time.monotonic() - self._began) * self._scale

    async def sleep(self, seconds: float) -> None:
        """Waits simulated seconds."""
        await asyncio.sleep(seconds / self._scale)

    def block(self, seconds: float) -> None:
        """Holds the calling thread for simulated seconds; not for the event loop's."""
        time.sleep(seconds / self._scale)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Calls on the running event loop after simulated seconds, never before; unless the handle is cancelled."""
        # uvloop keeps time in whole milliseconds, rounded down: its now may be almost one behind.
        milliseconds = math.ceil(seconds / self._scale * 1000) + 1 if seconds > 0 else 0
        return asyncio.get_running_loop().call_later(milliseconds / 1000, callback)
