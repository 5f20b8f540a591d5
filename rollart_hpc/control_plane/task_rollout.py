"""TaskRollout: one task as the scheduler sees it: the order of its seeds, its group's members, their deadlines.

Invariant: a seed that is poisoned is never next again. What is measured is of this attempt, and of groups that are
whole alone: what was cut as redundant or by a measured deadline would make every tail look short.
"""

from __future__ import annotations

import logging
from typing import Any

from rollart_hpc.config.schema import RunConfig, TaskSection
from rollart_hpc.control_plane.deadlines import MeasuredDeadline
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.last_call import LastCall
from rollart_hpc.control_plane.redundancy import AutoRedundancy, PlayAttempt
from rollart_hpc.control_plane.rollout_statistics import TaskRolloutStatistics
from rollart_hpc.control_plane.seeds import seed_at
from rollart_hpc.control_plane.task_cursor import Reason, TaskCursor
from rollart_hpc.data_plane.task_rows import TaskRows
from rollart_hpc.errors import RollartError
from rollart_hpc.types import Outcome, Trajectory

_log = logging.getLogger(__name__)
_MAX_GIVEN_UP_IN_A_ROW = 8


class TaskBrokenError(RollartError):
    """A task gives no trajectory at all."""


class TaskRollout:
    """The seeds, the redundancy and the deadlines of one task."""

    def __init__(self, name: str, config: RunConfig, cursor: TaskCursor) -> None:
        self.name, self.cursor = name, cursor
        self.section = config.tasks[name]
        self.statistics = TaskRolloutStatistics()
        self.last_call = LastCall(config.rollout.last_call)
        self._run_seed = config.run.seed
        self._num_seeds = _num_seeds(self.section)
        self._auto = _auto_redundancy(name, config)
        self._trajectory_deadline = MeasuredDeadline(config.rollout.trajectory_timeout_s)
        self._turn_deadline = MeasuredDeadline(config.turn_timeout_s(name))
        self._measures_deadlines = config.rollout.deadlines == "measured"
        self._num_given_up_in_a_row = 0

    # --- seeds ----------------------------------------------------------------------------------------

    def seed(self, index: int) -> int:
        """The seed at a place of the task's order."""
        return seed_at(self._run_seed, self.name, index, self._num_seeds)

    def next_index(self) -> int:
        """The place in the order to open next.

        Raises:
            TaskBrokenError: every seed is poisoned.
        """
        num_seeds, poisoned = self._num_seeds, self.cursor.poisoned
        if num_seeds is not None and len(poisoned) >= num_seeds:
            raise TaskBrokenError(
                f"task {self.name}: all of its {num_seeds} seeds are poisoned; see the ledger for the causes"
            )
        while self.seed(self.cursor.next) in poisoned:
            self.cursor.skip()
        return self.cursor.next

    def completed(self, group: Group) -> None:
        """One of its groups is complete and has its stamp: the task works."""
        self._num_given_up_in_a_row = 0
        self.last_call.completed(group.completed_s - group.opened_s)

    def gave_up(self, group: Group, outcome: Outcome, reason: Reason) -> None:
        """A group ended untrained; a stale one's seed is played again, a poisoned one's never.

        Raises:
            TaskBrokenError: it is the last of many in a row that were given up for their failures.
        """
        self.cursor.give_up(group.index, group.seed, outcome, reason)
        if outcome is Outcome.STALE:
            return
        if outcome is Outcome.POISONED:
            _log.warning(
                "task %s: seed %d is poisoned and not played again, one place of group %s failed %d times; the last "
                "cause is %r (%s)",
                self.name, group.seed, group.group_id, reason.num_failures, reason.cause, reason.detail,
            )  # fmt: skip
        self._num_given_up_in_a_row += 1
        if self._num_given_up_in_a_row >= _MAX_GIVEN_UP_IN_A_ROW:
            is_theirs = reason.cause.startswith(("environment ", "reward "))
            advice = "try it by hand" if is_theirs else "the logs of the environment workers say more"
            raise TaskBrokenError(
                f"task {self.name}: {_MAX_GIVEN_UP_IN_A_ROW} groups in a row were given up and none was completed; "
                f"the last one's cause is {reason.cause!r} ({reason.detail}); {advice}"
            )

    # --- members and deadlines ------------------------------------------------------------------------

    @property
    def num_redundant(self) -> int:
        """Members that a group is started with now, beyond its size."""
        return self.section.redundant_members() if self._auto is None else self._auto.members

    @property
    def timeout_s(self) -> float | None:
        """What a trajectory may take; None for the configured time."""
        return self._trajectory_deadline.seconds if self._measures_deadlines else None

    @property
    def turn_timeout_s(self) -> float | None:
        """What one of its turns may take; None for the configured time."""
        return self._turn_deadline.seconds if self._measures_deadlines else None

    def returned(self, trajectory: Trajectory, duration_s: float | None, *, is_whole: bool) -> None:
        """Counts a trajectory of a group that may be whole; the duration is None where it went on from a turn log."""
        if not trajectory.failure:
            self.statistics.scored.add(trajectory, duration_s)
        if duration_s is None or not is_whole:
            return
        is_dropped = trajectory.truncated and self.section.drop_truncated
        if self._auto is not None:
            self._auto.observe(PlayAttempt(duration_s=duration_s, has_failed=bool(trajectory.failure) or is_dropped))
        if not trajectory.failure:
            self._trajectory_deadline.observe(duration_s)
            self._turn_deadline.observe(trajectory.slowest_turn_s)

    def overtaken(self, lasted_s: float) -> None:
        """A running member of a whole group was cut as stale: it would have taken longer than it lasted."""
        if self._auto is not None:
            self._auto.observe(PlayAttempt(duration_s=lasted_s, has_failed=False))
        self._trajectory_deadline.observe(lasted_s)
        self._turn_deadline.observe(lasted_s)

    # --- reports --------------------------------------------------------------------------------------

    def as_record(self) -> dict[str, Any]:
        """For metrics.jsonl: what is in use now, and the means of this attempt so far."""
        timeouts = {"trajectory_timeout_s": self.timeout_s, "turn_timeout_s": self.turn_timeout_s}
        return {
            "redundant_members": self.num_redundant,
            "buffer_wait_s": self.statistics.buffer_wait_s,
            "length_bias": self.statistics.length_bias(),
            **{name: value for name, value in timeouts.items() if value is not None},
        }

    def as_summary(self) -> dict[str, Any]:
        """For summary.json; ``cut_estimate`` is of the witnesses, for all redundant members."""
        counts = self.statistics
        record = self.as_record()
        return {
            "redundancy": {
                "members": record.pop("redundant_members"),
                "cut": counts.num_redundant,
                "witnesses": counts.witnesses.count,
                "trained": counts.trained.as_summary(),
                "cut_estimate": counts.witnesses.as_summary(),
            },
            **record,
        }

    def poisoned(self) -> list[dict[str, Any]]:
        """The seeds that are not played any more, of all attempts."""
        return [
            {
                "seed": seed,
                "cause": reason.cause,
                "detail": reason.detail,
                "failures": reason.num_failures,
            }
            for seed, reason in self.cursor.poisoned.items()
        ]


def _num_seeds(section: TaskSection) -> int | None:
    """As configured, else one for each row of the data set, which is read for it: its size decides the order."""
    if section.num_seeds is not None or section.dataset is None:
        return section.num_seeds
    rows = TaskRows(section.dataset)
    rows.close()
    return len(rows)


def _auto_redundancy(name: str, config: RunConfig) -> AutoRedundancy | None:
    section = config.tasks[name]
    if section.redundancy != "auto":
        return None
    share = section.weight / sum(task.weight for task in config.tasks.values())
    return AutoRedundancy(
        group_size=section.group_size,
        most=section.most_redundant(),
        groups_per_batch=config.rollout.groups_per_step * share,
    )
