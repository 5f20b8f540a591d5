"""The ledger: every dispatched trajectory ends in exactly one outcome, or is pending.

``dispatched = trained + stale + redundant + failed + truncated + poisoned + pending`` holds after every call.
It is the one owner of outcomes: who ends a trajectory twice, or one that was never dispatched, gets an error.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from rollart_hpc.errors import RollartError
from rollart_hpc.types import Outcome


class LedgerError(RollartError):
    """The books would not balance."""


class LedgerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The balance of one task or of the whole run."""

    dispatched: int
    pending: int
    outcomes: dict[str, int]
    causes: dict[str, int]
    """Ended trajectories that were not trained, by ``outcome: cause``."""

    def as_summary(self) -> dict[str, Any]:
        """One flat mapping, every outcome present."""
        return {
            "dispatched": self.dispatched,
            **{str(outcome): self.outcomes.get(outcome, 0) for outcome in Outcome},
            "pending": self.pending,
        }


class Ledger:
    """Outcomes of trajectories by id."""

    def __init__(self) -> None:
        self._pending: dict[str, str] = {}
        self._ended: dict[str, Outcome] = {}
        self._tasks: dict[str, str] = {}
        self._causes: Counter[tuple[str, str]] = Counter()
        self._outcomes: Counter[tuple[str, Outcome]] = Counter()

    def dispatch(self, trajectory_id: str, task: str) -> None:
        """Books a new trajectory as pending."""
        if trajectory_id in self._tasks:
            raise LedgerError(f"{trajectory_id} was dispatched before")
        self._tasks[trajectory_id] = task
        self._pending[trajectory_id] = task

    def end(self, trajectory_id: str, outcome: Outcome, cause: str = "") -> None:
        """Books a pending trajectory's end."""
        task = self._pending.pop(trajectory_id, None)
        if task is None:
            known = self._ended.get(trajectory_id)
            raise LedgerError(f"{trajectory_id} cannot end as {outcome}: it {'is ' + known if known else 'is unknown'}")
        self._ended[trajectory_id] = outcome
        self._outcomes[task, outcome] += 1
        if outcome is not Outcome.TRAINED:
            self._causes[task, f"{outcome}: {cause or 'unknown'}"] += 1

    def is_pending(self, trajectory_id: str) -> bool:
        """Whether it was dispatched and has not ended."""
        return trajectory_id in self._pending

    def outcome(self, trajectory_id: str) -> Outcome | None:
        """How it ended; None while it is pending or unknown."""
        return self._ended.get(trajectory_id)

    def tasks(self) -> list[str]:
        """Every task that had a trajectory, in order of their first."""
        return list(dict.fromkeys(self._tasks.values()))

    def pending_ids(self) -> list[str]:
        """Ids of all pending trajectories, oldest first."""
        return list(self._pending)

    def balance(self, task: str | None = None) -> LedgerCounts:
        """The balance of a task, or of the whole run."""
        outcomes: Counter[str] = Counter()
        causes: Counter[str] = Counter()
        for (owner, outcome), count in self._outcomes.items():
            if task in (None, owner):
                outcomes[str(outcome)] += count
        for (owner, cause), count in self._causes.items():
            if task in (None, owner):
                causes[cause] += count
        pending = sum(1 for owner in self._pending.values() if task in (None, owner))
        return LedgerCounts(
            dispatched=pending + sum(outcomes.values()),
            pending=pending,
            outcomes=dict(outcomes),
            causes=dict(causes),
        )
