"""Where a task is in its order of seeds."""

from __future__ import annotations

from copy import deepcopy

import msgspec

from rollart_hpc.types import Outcome


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a group was given up."""

    cause: str = ""
    detail: str = ""
    """Of the last failure."""
    num_failures: int = 0
    """Of the group's place that failed too often."""


class TaskCursor(msgspec.Struct, kw_only=True):
    """Part of a checkpoint, and the fold of a task's groups in the journal."""

    next_index: int = 0
    again: list[int] = []
    """Indices that were opened and not trained: they come before new ones."""
    poisoned: dict[int, Reason] = {}
    """Seeds that are never played again, with the reason."""
    reopened: dict[int, int] = {}
    """How often an index was opened beyond the first time; the group's name has it."""

    @property
    def next(self) -> int:
        """The index to open next."""
        return self.again[0] if self.again else self.next_index

    def skip(self) -> None:
        """Passes over the next index, whose seed is poisoned."""
        self._advance(self.next)

    def open(self, index: int, group_id: str) -> None:
        """A group was opened for the index."""
        self._advance(index)
        _, _, number = group_id.partition(REOPENED)
        if number:
            self.reopened[index] = int(number)

    def group_id(self, task: str, index: int) -> str:
        """The name of the index's next group: the same in every attempt."""
        first = f"{task}-{index}"
        if index >= self.next_index:
            return first
        return f"{first}{REOPENED}{self.reopened.get(index, 0) + 1}"

    def give_up(self, index: int, seed: int, outcome: Outcome, reason: Reason) -> None:
        """A group ended untrained."""
        if outcome is Outcome.STALE:
            self.again.append(index)
        elif outcome is Outcome.POISONED:
            self.poisoned[seed] = reason

    def named_like(self, other: TaskCursor) -> TaskCursor:
        """The same place, with names for groups that ``other`` has not given either."""
        numbers = {index: max(self.reopened.get(index, 0), count) for index, count in other.reopened.items()}
        return TaskCursor(
            next_index=max(self.next_index, other.next_index),
            again=list(self.again),
            poisoned=dict(self.poisoned),
            reopened=self.reopened | numbers,
        )

    def copy(self) -> TaskCursor:
        """One that changes by itself."""
        return deepcopy(self)

    def _advance(self, index: int) -> None:
        if index in self.again:
            self.again.remove(index)
        self.next_index = max(self.next_index, index + 1)


REOPENED = "~"
"""Between a group's name and the number of its reopening."""
