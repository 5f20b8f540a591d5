"""A circuit breaker: after K failures in a row, or when it is tripped, nothing is tried for a while, then one call."""

from __future__ import annotations

import time


class CircuitBreaker:
    """Says whether a call is worth trying.

    Args:
        failures: in a row, that open the circuit.
        open_s: how long it then stays open, until one call may try.
        max_open_s: each try in vain doubles that time, up to this one; no more than ``open_s`` when absent.
    """

    def __init__(self, *, failures: int, open_s: float, max_open_s: float | None = None) -> None:
        self._failures = failures
        self._first_open_s = self._open_s = open_s
        self._max_open_s = open_s if max_open_s is None else max_open_s
        self._failures_in_row = 0
        self._tried_at = 0.0

    @property
    def is_closed(self) -> bool:
        """Calls go through."""
        return self._failures_in_row < self._failures

    def admits(self) -> bool:
        """Whether to try now. In an open circuit the one call that is let through takes the next turn."""
        if self.is_closed:
            return True
        now = time.monotonic()
        if now - self._tried_at < self._open_s:
            return False
        self._tried_at = now
        self._open_s = min(self._max_open_s, 2 * self._open_s)
        return True

    def record(self, *, success: bool) -> None:
        """Takes the outcome of one call."""
        if success:
            self._failures_in_row, self._open_s = 0, self._first_open_s
            return
        self._failures_in_row += 1
        if self._failures_in_row == self._failures:
            self._tried_at = time.monotonic()

    def trip(self) -> None:
        """Opens it at once; nothing when it is open."""
        if self.is_closed:
            self._failures_in_row = self._failures
            self._tried_at = time.monotonic()
