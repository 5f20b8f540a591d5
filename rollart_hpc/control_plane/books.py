"""The books of a run, kept a second time: a fold of the journal that believes nothing.

The `RolloutScheduler` and its `Ledger` decide what is written; this shares no code with them and writes down what
contradicts itself instead of raising. Any prefix of a right journal is right: a run may be killed at any moment, and
may go on from an older checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
from rollart_hpc.control_plane.ledger import LedgerCounts
from rollart_hpc.types import Outcome, Trajectory, TurnLog

_UNKNOWN = "(unknown)"
_NAMED_IDS = 5


@dataclass(slots=True)
class _Account:
    """One trajectory."""

    group_id: str
    task: str
    sent_in: int | None = None
    """Attempt that sent it last."""
    is_handed_in: bool = False
    """Since it was sent last: it may be sent again."""
    log: TurnLog | None = None
    """Handed in last."""
    sent_log: TurnLog | None = None
    """What it was sent with last."""
    is_finished: bool = False
    is_failed: bool = False
    outcome: Outcome | None = None
    step: int | None = None
    """Of its batch."""


class Books:
    """Add every record of the journal in order, then call `close` once."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        """What contradicts itself, in the order of the journal."""
        self.notes: list[str] = []
        """What is worth knowing and no contradiction."""
        self.attempt: int | None = None
        """The newest that the journal knows."""
        self.num_attempts = 0
        self.num_batches = 0
        """Also the step that the next one must have."""
        self._first_untrained = 0
        """Batches before this step are trained, for a checkpoint has been gone on from."""
        self._tasks: dict[str, str] = {}
        self._given_up: dict[str, Outcome] = {}
        self._accounts: dict[str, _Account] = {}
        self._batches: dict[int, tuple[str, ...]] = {}
        self._digests: dict[int, tuple[str, int | None]] = {}
        self._dispatched: Counter[str] = Counter()
        self._ended: Counter[tuple[str, Outcome]] = Counter()
        self._causes: Counter[tuple[str, str]] = Counter()

    def add(self, record: Record) -> None:
        """Books one record."""
        match record:
            case AttemptStarted():
                self._start(record)
            case GroupOpened():
                if record.group_id in self._tasks:
                    self._wrong(f"group {record.group_id} was opened twice")
                self._tasks[record.group_id] = record.task
            case Dispatched():
                self._dispatch(record)
            case Sent():
                self._send(record)
            case HandedIn():
                self._hand_in(record.log)
            case Finished():
                self._finish(record.trajectory)
            case Ended():
                self._end(record)
            case GivenUp():
                self._give_up(record)
            case BatchFormed():
                self._form_batch(record)
            case Published():
                self._publish(record)

    def close(self, *, trained_steps: int = 0) -> None:
        """Checks what only the end of the journal can tell.

        Args:
            trained_steps: Batches before this step are known to be trained.
        """
        trained_steps = max(trained_steps, self._first_untrained, self.num_batches - 1)
        for step, members in self._batches.items():
            self._check_batch(step, members, must_be_trained=step < trained_steps)
        left: dict[str, list[str]] = {}
        for trajectory_id, account in self._accounts.items():
            if account.group_id in self._given_up and account.outcome in (None, Outcome.TRAINED):
                left.setdefault(account.group_id, []).append(trajectory_id)
        for group_id, members in left.items():
            self._wrong(f"group {group_id} was given up, but not all of it ended so: {_some(members)}")
        for task, balance in self.balances().items():
            if balance.dispatched != balance.pending + sum(balance.outcomes.values()):
                self._wrong(
                    f"task {task} does not balance: {balance.dispatched} trajectories were dispatched, "
                    f"{sum(balance.outcomes.values())} ended and {balance.pending} are pending"
                )

    def balances(self) -> dict[str, LedgerCounts]:
        """The balance of each task, in the order of their first trajectories."""
        pending = Counter(account.task for account in self._accounts.values() if account.outcome is None)
        return {
            task: LedgerCounts(
                dispatched=dispatched,
                pending=pending[task],
                outcomes={str(outcome): count for (of, outcome), count in self._ended.items() if of == task},
                causes={cause: count for (of, cause), count in self._causes.items() if of == task},
            )
            for task, dispatched in self._dispatched.items()
        }

    # --- records --------------------------------------------------------------------------------------

    def _start(self, record: AttemptStarted) -> None:
        if self.attempt is not None and record.attempt <= self.attempt:
            self._wrong(f"attempt {record.attempt} follows attempt {self.attempt}")
        if record.step > self.num_batches:
            self._wrong(
                f"attempt {record.attempt} goes on from step {record.step}, but there are only {self.num_batches} "
                "batches before it: the journal has lost what came between"
            )
            self.num_batches = record.step
        self.attempt = record.attempt
        self.num_attempts += 1
        self._first_untrained = max(self._first_untrained, record.step)

    def _dispatch(self, record: Dispatched) -> None:
        task = self._tasks.get(record.group_id, _UNKNOWN)
        if task == _UNKNOWN:
            self._wrong(f"{record.trajectory_id} was dispatched for group {record.group_id}, which was never opened")
        self._dispatched[task] += 1
        if record.trajectory_id in self._accounts:
            self._wrong(f"{record.trajectory_id} was dispatched twice")
        else:
            self._accounts[record.trajectory_id] = _Account(record.group_id, task)

    def _send(self, record: Sent) -> None:
        account = self._account(record.trajectory_id, "sent")
        if account is None:
            return
        if account.is_finished:
            self._wrong(f"{record.trajectory_id} was sent to {record.worker} after it had finished")
        if account.sent_in is not None and account.sent_in == self.attempt and not account.is_handed_in:
            self._wrong(f"{record.trajectory_id} was sent twice in attempt {self.attempt}")
        account.sent_in, account.is_handed_in = self.attempt or 0, False
        account.sent_log = account.log

    def _hand_in(self, log: TurnLog) -> None:
        account = self._account(log.trajectory_id, "handed in")
        if account is None:
            return
        if account.is_finished:
            self._wrong(f"{log.trajectory_id} was handed in after it had finished")
        account.log, account.is_handed_in = log, True

    def _finish(self, trajectory: Trajectory) -> None:
        trajectory_id = trajectory.trajectory_id
        account = self._account(trajectory_id, "finished")
        if account is None:
            return
        if account.is_finished:
            self._wrong(f"{trajectory_id} finished twice")
        if account.sent_in is None:
            self._wrong(f"{trajectory_id} finished, but was sent to nobody")
        if not trajectory.failure and (fault := _fault_of_continuation(account.sent_log, trajectory)):
            self._wrong(f"{trajectory_id} {fault}")
        account.is_finished, account.is_failed = True, bool(trajectory.failure)
        account.log = account.sent_log = None

    def _end(self, record: Ended) -> None:
        account = self._account(record.trajectory_id, f"ended as {record.outcome}")
        if account is None:
            return
        self._ended[account.task, record.outcome] += 1
        account.outcome = record.outcome
        account.log = account.sent_log = None
        if record.outcome is not Outcome.TRAINED:
            self._causes[account.task, f"{record.outcome}: {record.cause or 'unknown'}"] += 1
        elif not account.is_finished or account.is_failed:
            self._wrong(
                f"{record.trajectory_id} was trained, but {'failed' if account.is_failed else 'never finished'}"
            )
        elif account.step is None:
            self._wrong(f"{record.trajectory_id} was trained, but is in no batch")

    def _give_up(self, record: GivenUp) -> None:
        if record.group_id not in self._tasks:
            self._wrong(f"group {record.group_id} was given up, but never opened")
        if record.group_id in self._given_up:
            self._wrong(f"group {record.group_id} was given up twice")
        self._given_up[record.group_id] = record.outcome

    def _form_batch(self, record: BatchFormed) -> None:
        if record.step in self._batches:
            self._wrong(f"the batch of step {record.step} was formed twice")
        elif record.step != self.num_batches:
            self._wrong(f"the batch of step {record.step} was formed where that of step {self.num_batches} was due")
        self._batches[record.step] = record.trajectory_ids
        self.num_batches = max(self.num_batches, record.step + 1)
        for trajectory_id in record.trajectory_ids:
            account = self._account(trajectory_id, f"taken into the batch of step {record.step}")
            if account is None:
                continue
            if account.step is not None:
                self._wrong(f"{trajectory_id} is in the batches of steps {account.step} and {record.step}")
            if not account.is_finished or account.is_failed:
                how = "failed" if account.is_failed else "has not finished"
                self._wrong(f"{trajectory_id} is in the batch of step {record.step}, but {how}")
            account.step = record.step

    def _publish(self, record: Published) -> None:
        if record.version > self.num_batches:
            self._wrong(f"version {record.version} was published, but there are only {self.num_batches} batches")
        digest, attempt = self._digests.setdefault(record.version, (record.digest, self.attempt))
        if digest != record.digest:
            text = f"version {record.version} has the digest {record.digest} in attempt {self.attempt} and had {digest}"
            if attempt == self.attempt:
                self._wrong(f"{text} before in the same attempt")
            else:
                self.notes.append(
                    f"{text} in attempt {attempt}: expected only where the layout, the learning rate, the hardware or "
                    "the size of the buckets changed"
                )
            self._digests[record.version] = (record.digest, self.attempt)

    # --------------------------------------------------------------------------------------------------

    def _account(self, trajectory_id: str, what: str) -> _Account | None:
        """The account of a trajectory that something happens to, which must exist and be open."""
        account = self._accounts.get(trajectory_id)
        if account is None:
            self._wrong(f"{trajectory_id} was {what}, but never dispatched")
        elif account.outcome is not None:
            self._wrong(f"{trajectory_id} was {what} after it had ended as {account.outcome}")
        return account

    def _check_batch(self, step: int, members: Sequence[str], *, must_be_trained: bool) -> None:
        outcomes = {member: account.outcome for member in members if (account := self._accounts.get(member))}
        pending = [member for member, outcome in outcomes.items() if outcome is None]
        if pending and must_be_trained:
            self._wrong(f"the batch of step {step} was trained, but these are still pending: {_some(pending)}")
        others = [member for member, outcome in outcomes.items() if outcome not in (None, Outcome.TRAINED)]
        if others:
            self._wrong(f"these are in the batch of step {step}, but did not end as trained: {_some(others)}")

    def _wrong(self, text: str) -> None:
        self.findings.append(text)


def _fault_of_continuation(log: TurnLog | None, trajectory: Trajectory) -> str:
    """What is wrong with how a trajectory that came back went on from the log that it was sent with."""
    num_continued = trajectory.num_continued_turns
    if log is None:
        return f"says that it went on from {num_continued} turns, but was sent without any" if num_continued else ""
    num_handed_in = len(log.turns) + (log.action is not None)
    if not num_continued:
        return (
            ""
            if trajectory.restarted or not num_handed_in
            else f"was sent with {num_handed_in} turns, and says neither that it went on from them nor why not"
        )
    if num_continued > num_handed_in:
        return f"says that it went on from {num_continued} turns, but was sent with {num_handed_in}"
    if not log.token_ids or not len(trajectory.token_ids):  # compacted
        return ""
    for name, before, after in (
        ("token ids", log.token_ids, trajectory.token_ids),
        ("loss mask", log.loss_mask, trajectory.loss_mask),
        ("logprobs", log.logprobs, trajectory.logprobs),
    ):
        if not np.ascontiguousarray(after).tobytes().startswith(before):
            return f"went on from {num_continued} turns, but its {name} do not begin with theirs"
    return ""


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _NAMED_IDS} more" if len(ids) > _NAMED_IDS else ""
    return ", ".join(ids[:_NAMED_IDS]) + more
