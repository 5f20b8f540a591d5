"""What a new attempt takes over from the journal: the scheduler's state, and the batches to be trained again.

The fold of the journal's records over all attempts, cut at the step of the checkpoint that the trainer goes on
from. Pending trajectories stay pending under their ids: those that came back wait in their groups, those that were
running are sent again, with their turn log where they were handed in.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.group import Group, Running
from rollart_hpc.control_plane.journal import (
    AttemptStarted,
    BatchFormed,
    Dispatched,
    Ended,
    Finished,
    GivenUp,
    GroupOpened,
    HandedIn,
    Published,
    Record,
    Sent,
)
from rollart_hpc.control_plane.ledger import Ledger
from rollart_hpc.control_plane.task_cursor import Reason, TaskCursor
from rollart_hpc.errors import CheckpointError
from rollart_hpc.types import Outcome, Trajectory, TurnLog

_log = logging.getLogger(__name__)
JOURNAL_LOST = "the journal lost its end"


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The state of the rollout at the start of an attempt; a new run's is empty."""

    step: int
    """Of the checkpoint."""
    ledger: Ledger = field(default_factory=Ledger)
    cursors: dict[str, TaskCursor] = field(default_factory=dict[str, TaskCursor])
    groups: list[Group] = field(default_factory=list[Group])
    """Open and complete ones that are in no batch, in the order of their opening."""
    returned: list[Trajectory] = field(default_factory=list[Trajectory])
    """Came back for ``groups`` and are pending, in the order of their return."""
    logs: dict[str, TurnLog] = field(default_factory=dict[str, TurnLog])
    """Turn logs of running trajectories, by id."""
    batches: list[list[Group]] = field(default_factory=list[list[Group]])
    """To be trained again: those of ``step``, ``step`` + 1, ..."""
    digests: dict[int, str] = field(default_factory=dict[int, str])
    """Of the weights by version, as they were published first."""
    lost: list[Record] = field(default_factory=list[Record])
    """To be journaled with the start of the attempt: ends of groups about which the journal says too little."""

    @property
    def version(self) -> int:
        """The trainer's version once the batches are trained again."""
        return self.step + len(self.batches)


def recover(records: Iterable[Record], state: ControllerState, config: RunConfig) -> Recovery:
    """Folds the journal for an attempt that goes on from ``state``.

    Raises:
        CheckpointError: the journal does not hold the batches since then any more.
    """
    fold = _Fold(state.step, config)
    for record in records:
        fold.add(record)
    return fold.end(state)


def unreturned(records: Iterable[Record]) -> set[str]:
    """Ids of trajectories that are pending and have not come back."""
    running: set[str] = set()
    for record in records:
        match record:
            case Dispatched():
                running.add(record.trajectory_id)
            case Finished():
                running.discard(record.trajectory.trajectory_id)
            case Ended():
                running.discard(record.trajectory_id)
            case _:
                pass
    return running


class _Fold:
    """Holds the token arrays of pending trajectories and of the batches since the checkpoint, of no others."""

    def __init__(self, step: int, config: RunConfig) -> None:
        self._config = config
        self._recovery = Recovery(step=step)
        self._groups: dict[str, Group] = {}
        self._group_of: dict[str, str] = {}
        self._returned: dict[str, Trajectory] = {}
        self._batches: dict[int, list[Group]] = {}
        self._suspects: defaultdict[str, list[tuple[Group, Reason]]] = defaultdict(list)
        """Groups that were given up as poisoned since the task was trained last."""
        self._num_batches = 0
        self._trained: tuple[str, ...] = ()
        """Of the newest batch that the checkpoint has."""

    def add(self, record: Record) -> None:
        recovery = self._recovery
        match record:
            case GroupOpened():
                self._open(record)
            case Dispatched():
                group = self._groups[record.group_id]
                recovery.ledger.dispatch(record.trajectory_id, group.task)
                self._group_of[record.trajectory_id] = record.group_id
                group.num_dispatched += 1
                group.running[record.trajectory_id] = Running(
                    place=record.place, tries=record.tries, dispatched_version=group.opened_version
                )
            case HandedIn():
                recovery.logs[record.log.trajectory_id] = record.log
            case Finished():
                self._returned[record.trajectory.trajectory_id] = record.trajectory
            case Ended():
                self._end(record)
            case GivenUp():
                self._give_up(record)
            case BatchFormed():
                self._form_batch(record)
            case Published():
                recovery.digests.setdefault(record.version, record.digest)
            case AttemptStarted():
                # What the journal lacked before it was given up then.
                self._num_batches = max(self._num_batches, record.step)
            case Sent():
                pass

    def end(self, state: ControllerState) -> Recovery:
        recovery = self._recovery
        if self._num_batches < state.step:
            _log.error(
                "the journal ends at the batch of step %d, the checkpoint is of step %d: what was pending between "
                "them is given up, and its seeds are played again",
                self._num_batches, state.step,
            )  # fmt: skip
            return self._without_end(state)
        for task in list(self._suspects):
            # The task gave nothing at all since then: it was broken, and its seeds deserve another try.
            self._judge_suspects(task, Outcome.STALE)
        recovery.batches = [self._batch(step) for step in range(state.step, self._num_batches)]
        for trajectory_id in filter(recovery.ledger.is_pending, self._trained):
            recovery.lost.append(Ended(trajectory_id, Outcome.TRAINED))
        for record in recovery.lost:
            self.add(record)
        recovery.groups = list(self._groups.values())
        recovery.returned = list(self._returned.values())
        recovery.logs = {
            trajectory_id: log
            for trajectory_id, log in recovery.logs.items()
            if recovery.ledger.is_pending(trajectory_id) and trajectory_id not in self._returned
        }
        for group in recovery.groups:
            for trajectory_id, member in group.running.items():
                log = recovery.logs.get(trajectory_id)
                started = log.start_version if log is not None else None
                member.dispatched_version = recovery.version if started is None else started
        return recovery

    def _open(self, record: GroupOpened) -> None:
        cursor = self._recovery.cursors.setdefault(record.task, TaskCursor())
        cursor.open(record.index, record.group_id)
        self._suspects[record.task] = [one for one in self._suspects[record.task] if one[0].index != record.index]
        task = self._config.tasks.get(record.task)
        self._groups[record.group_id] = Group(
            group_id=record.group_id,
            task=record.task,
            index=record.index,
            seed=record.seed,
            size=task.group_size if task is not None else 0,
            opened_version=record.version,
        )

    def _end(self, record: Ended) -> None:
        self._recovery.ledger.end(record.trajectory_id, record.outcome, record.cause)
        self._returned.pop(record.trajectory_id, None)
        self._recovery.logs.pop(record.trajectory_id, None)
        group = self._groups.get(self._group_of.pop(record.trajectory_id))
        if group is not None:
            group.running.pop(record.trajectory_id, None)

    def _give_up(self, record: GivenUp) -> None:
        group = self._groups.pop(record.group_id)
        if record.outcome is Outcome.POISONED:
            self._suspects[group.task].append((group, record.reason))
        else:
            self._recovery.cursors[group.task].give_up(group.index, group.seed, record.outcome, record.reason)

    def _judge_suspects(self, task: str, outcome: Outcome) -> None:
        for group, reason in self._suspects.pop(task, []):
            self._recovery.cursors[task].give_up(group.index, group.seed, outcome, reason)

    def _form_batch(self, record: BatchFormed) -> None:
        """Takes the groups of the batch out, with their members in the order in which they were trained."""
        group_ids = dict.fromkeys(self._group_of[trajectory_id] for trajectory_id in record.trajectory_ids)
        groups = {group_id: self._groups.pop(group_id) for group_id in group_ids}
        for trajectory_id in record.trajectory_ids:
            group = groups[self._group_of[trajectory_id]]
            group.finished.append(self._returned.pop(trajectory_id))
            group.running.pop(trajectory_id)
        if record.step >= self._recovery.step:
            self._batches[record.step] = list(groups.values())
        else:
            self._trained = record.trajectory_ids
        self._num_batches = record.step + 1
        for task in {group.task for group in groups.values()}:
            # The task works: those were the seeds' own fault.
            self._judge_suspects(task, Outcome.POISONED)

    def _batch(self, step: int) -> list[Group]:
        groups = self._batches.get(step, [])
        members = [member for group in groups for member in group.finished]
        if not members or any(member.spans and not len(member.token_ids) for member in members):
            raise CheckpointError(
                f"the checkpoint of step {self._recovery.step} cannot be gone on from: the journal does not hold "
                f"the batch of step {step} any more, which was trained after it; give back a newer checkpoint, or "
                "begin a new run from this one's weights"
            )
        return groups

    def _without_end(self, state: ControllerState) -> Recovery:
        recovery = Recovery(step=state.step, ledger=self._recovery.ledger, digests=self._recovery.digests)
        known = self._recovery.cursors
        recovery.cursors = {
            task: state.cursors.get(task, TaskCursor()).named_like(known.get(task, TaskCursor()))
            for task in state.cursors.keys() | known.keys()
        }
        recovery.lost += [GivenUp(group_id, Outcome.STALE) for group_id in self._groups]
        for trajectory_id in recovery.ledger.pending_ids():
            recovery.lost.append(Ended(trajectory_id, Outcome.FAILED, JOURNAL_LOST))
            recovery.ledger.end(trajectory_id, Outcome.FAILED, JOURNAL_LOST)
        return recovery
