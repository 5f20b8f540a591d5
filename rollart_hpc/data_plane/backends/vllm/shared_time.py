"""The time of an engine that runs in another process, shared by its requests (see `TagUsage`).

Such an engine tells of a request, when it ends, how long it waited, until its first token, and until its last. At each
moment the clock here goes at the rate of one over the number of requests in flight, so what it went on in an interval
is the share that a request had of it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rollart_hpc.types import Span

_PRUNE_ABOVE = 4096
"""Changes of the rate that are kept at least."""


class Shares(NamedTuple):
    """What one request took of the engine's time, seconds."""

    prefill_s: float
    decode_s: float
    recompute_s: float


class SharedTime:
    """The clock; it stands still while nothing is in flight and while the engine is suspended."""

    def __init__(self, max_running: int, now: Callable[[], float] = time.monotonic) -> None:
        """``max_running`` requests are worked on at once; those above it wait in the engine."""
        self._max_running, self._now = max_running, now
        self._begun: dict[str, float] = {}
        """When each request in flight was added, the oldest first."""
        self._is_suspended = False
        self._times, self._shared, self._rates = [now()], [0.0], [0.0]
        self._prune_at = _PRUNE_ABOVE

    def begin(self, request: str) -> None:
        """A request was added."""
        self._begun[request] = self._now()
        self._change()

    def end(self, request: str) -> None:
        """It has ended, however."""
        if self._begun.pop(request, None) is not None:
            self._change()

    def suspend(self) -> None:
        """No step runs any more."""
        self._is_suspended = True
        self._change()

    def resume(self) -> None:
        """The engine goes on."""
        self._is_suspended = False
        self._change()

    def shares(self, prefill_s: float, decode_s: float, num_prompt_tokens: int, spans: Sequence[Span]) -> Shares:
        """The shares of a request that has its last token now.

        When the tokens after a weight update came is not told. What was computed again for them is taken to have cost
        as much for each token as the prompt did the first time: an estimate.

        Args:
            prefill_s: from its first step, not from when it was added, to its first token.
            decode_s: from its first token to its last.
            num_prompt_tokens: of its prompt, cached ones included.
            spans: which version sampled which of its tokens.
        """
        last = self._now()
        first = last - decode_s
        prefill = self._at(first) - self._at(first - prefill_s)
        after_first = self._at(last) - self._at(first)
        again = sum(num_prompt_tokens + span.start for span in spans[1:])
        recompute = min(after_first, prefill * again / num_prompt_tokens)
        return Shares(prefill, after_first - recompute, recompute)

    def _change(self) -> None:
        now = self._now()
        self._shared.append(self._at(now))
        self._times.append(now)
        running = min(len(self._begun), self._max_running)
        self._rates.append(0.0 if self._is_suspended or not running else 1.0 / running)
        if len(self._times) > self._prune_at:
            self._prune()

    def _at(self, moment: float) -> float:
        """What the clock showed, or shows."""
        index = max(0, bisect_right(self._times, moment) - 1)
        return self._shared[index] + max(0.0, moment - self._times[index]) * self._rates[index]

    def _prune(self) -> None:
        """Forgets what is older than every request in flight."""
        oldest = next(iter(self._begun.values()), self._times[-1])
        keep = max(0, bisect_right(self._times, oldest) - 1)
        for values in (self._times, self._shared, self._rates):
            del values[:keep]
        self._prune_at = max(_PRUNE_ABOVE, 2 * len(self._times))
