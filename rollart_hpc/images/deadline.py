"""How long one pull may take, over everything that it waits for."""

from __future__ import annotations

import random
import time


class Deadline:
    """A point in time; waits end at it."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds until then; 0 when it is over."""
        return max(0.0, self._at - time.monotonic())

    def bounded(self, wait_s: float) -> float:
        """A wait that ends with it; never 0, which sockets take for no wait at all."""
        return max(0.001, min(wait_s, self.left_s()))

    def sleep(self, wait_s: float) -> bool:
        """Sleeps, unless the time would be over before; says whether it slept."""
        if wait_s >= self.left_s():
            return False
        time.sleep(wait_s)
        return True


def jittered_s(tries: int, *, first_s: float, longest_s: float) -> float:
    """A pause before the next try that grows with their number; random, so that a herd does not come back together."""
    return random.uniform(0.5, 1.0) * min(longest_s, first_s * 2 ** min(tries, 30))
