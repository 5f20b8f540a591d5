"""A circuit breaker: after K failures in a row nothing is tried for T seconds, then one call at a time tries."""

from __future__ import annotations

import time


class CircuitBreaker:
    """Says whether a call is worth trying.

    Args:
        failures: in a row, that open the circuit.
        open_s: how long it then stays open.
    """

    def __init__(self, *, failures: int, open_s: float) -> None:
        self._failures = failures
        self._open_s = open_s
        self._failures_in_row = 0
        self._tried_at = 0.0

    def admits(self) -> bool:
        """Whether to try now. In an open circuit the one call that is let through takes the next turn."""
        if self._failures_in_row < self._failures:
            return True
        now = time.monotonic()
        if now - self._tried_at < self._open_s:
            return False
        self._tried_at = now
        return True

    def record(self, *, success: bool) -> None:
        """Takes the outcome of one call."""
        self._failures_in_row = 0 if success else self._failures_in_row + 1
        if self._failures_in_row == self._failures:
            self._tried_at = time.monotonic()
