"""The requests that an emulated engine decodes: a fluid model of continuous batching.

All get a token in each step, so that the steps that were taken since the batch was last empty are one count for all of
them: a request joins at a count and ends at a later one. An event costs O(log n).
"""

from __future__ import annotations

import heapq
import itertools
import math

from rollart_hpc.simulate.cost_model import EngineCost
from rollart_hpc.simulate.generated import Generated

_WHOLE = 1e-6
"""Of a step: what rounding may take from one that is complete."""


class DecodingBatch:
    """Steps in simulated seconds; nothing here knows what time it is."""

    def __init__(self, cost: EngineCost) -> None:
        self._cost = cost
        self._steps = 0.0
        self._share_s = 0.0
        """Of the engine's time, for a request that was always in the batch: an equal share of each moment."""
        self._joined: dict[Generated, tuple[float, float]] = {}
        """The steps and the share when each came."""
        self._ends: list[tuple[float, int, Generated]] = []
        """A heap by the count of steps at which each ends; some have left before."""
        self._order = itertools.count()
        self._context_at_0 = 0.0
        """Tokens of all contexts, less what they grew by since step 0."""

    def __len__(self) -> int:
        return len(self._joined)

    def join(self, one: Generated) -> None:
        """Decodes it from now on."""
        if not self._joined:
            self._steps = self._share_s = self._context_at_0 = 0.0
            self._ends.clear()
        self._joined[one] = self._steps, self._share_s
        self._context_at_0 += one.context_tokens - self._steps
        heapq.heappush(self._ends, (self._steps + one.tokens_left, next(self._order), one))

    def seconds_to_next_end(self) -> float:
        """Until the first request is complete; infinite where there is none."""
        self._forget_left()
        if not self._ends:
            return math.inf
        return self._cost.decode_s(len(self), self._context_tokens, self._ends[0][0] - self._steps)

    def go_on(self, seconds: float) -> None:
        """Takes steps for so long."""
        if self._joined:
            self._steps += self._cost.decoded_steps(len(self), self._context_tokens, seconds)
            self._share_s += seconds / len(self)

    def go_on_to_next_end(self) -> list[Generated]:
        """Takes steps until the first request is complete; that one and those that end with it leave the batch."""
        self.go_on(self.seconds_to_next_end())
        complete: list[Generated] = []
        while self._ends and self._ends[0][0] <= self._steps + _WHOLE / 2:
            one = heapq.heappop(self._ends)[2]
            if one in self._joined:
                self.leave(one)
                complete.append(one)
        return complete

    def leave(self, one: Generated) -> None:
        """Ends a request's decoding with the whole tokens that it has."""
        steps, share_s = self._joined.pop(one)
        self._context_at_0 -= one.context_tokens - steps
        one.num_tokens += int(self._steps - steps + _WHOLE)
        one.decode_s += self._share_s - share_s

    def leave_all(self) -> list[Generated]:
        """All of them, in the order in which they came."""
        everyone = list(self._joined)
        for one in everyone:
            self.leave(one)
        return everyone

    @property
    def _context_tokens(self) -> float:
        return self._context_at_0 + len(self) * self._steps

    def _forget_left(self) -> None:
        while self._ends and self._ends[0][2] not in self._joined:
            heapq.heappop(self._ends)
