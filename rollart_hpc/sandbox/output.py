"""What is kept of a command's output, its beginning and its end within a bound, and how fast it is taken."""

from __future__ import annotations

import time

_BURST = 64 << 20
_BYTES_PER_S = 8 << 20


class Pace:
    """How fast output is taken: a burst at once, later so much in a second.

    A program that prints for ever then waits for its pipe, instead of taking a core for itself and part of another for
    who drops what it prints; one that ends prints what it has to.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._taken = 0

    def take(self, num_bytes: int) -> None:
        """Takes note of what came."""
        self._taken += num_bytes

    def is_ahead(self) -> bool:
        """Whether no more should be taken now."""
        return self._taken > _BURST + _BYTES_PER_S * (time.monotonic() - self._began)


class HeadAndTail:
    """Takes bytes without end and keeps ``limit`` of them: the first half and the last half."""

    def __init__(self, limit: int) -> None:
        self._head_limit, self._tail_limit = limit - limit // 2, limit // 2
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Takes the next bytes."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            self._dropped += excess
            del self._tail[:excess]

    def head(self) -> bytes:
        """What came first."""
        return bytes(self._head)

    def text(self) -> str:
        """All that is kept, decoded; says how much is missing where it is missing."""
        self._trim()
        if not self._dropped:
            return (self._head + self._tail).decode(errors="replace")
        middle = f"\n[... {self._dropped} bytes of output were dropped ...]\n"
        return self._head.decode(errors="replace") + middle + self._tail.decode(errors="replace")
