"""How the groups of all batches are shared among the tasks by weight.

Seats are given one by one, each to the task that is furthest behind its weight (the divisor method of Sainte-Lague):
the shares of any number of batches are as close to the weights as whole groups can be, a light task has its turn
every few batches, and what earlier batches held never changes.
"""

from __future__ import annotations

from collections.abc import Mapping


class TaskMix:
    """The composition of every batch."""

    def __init__(self, weights: Mapping[str, float], groups_per_step: int) -> None:
        """``weights`` by task; one of 0 is never played.

        Raises:
            ValueError: no weight is above 0.
        """
        self._weights = {task: weight for task, weight in weights.items() if weight > 0}
        if not self._weights:
            raise ValueError("no weight is above 0")
        self._groups_per_step = groups_per_step
        self._until = [dict.fromkeys(weights, 0)]

    def until(self, num_batches: int) -> dict[str, int]:
        """Groups of each task in the first ``num_batches`` batches together."""
        while len(self._until) <= num_batches:
            seats = dict(self._until[-1])
            for _ in range(self._groups_per_step):
                seats[max(self._weights, key=lambda task: self._weights[task] / (2 * seats[task] + 1))] += 1
            self._until.append(seats)
        return dict(self._until[num_batches])

    def of_batch(self, number: int) -> dict[str, int]:
        """Groups of each task in batch ``number``, from 0; their sum is ``groups_per_step``."""
        before, after = self.until(number), self.until(number + 1)
        return {task: after[task] - before[task] for task in after}
