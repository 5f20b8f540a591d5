"""RolloutScheduler: which groups are opened, who plays their members, how each one ends (paper section 6).

A pure state machine: events go in through its methods, orders come out of `take_orders`. It alone moves
trajectories in the ledger, so the staleness bound, the buffer's bounds and the books have one owner.

The bound. Q(n) is the number of a task's groups in the first n batches (`TaskMix`). The batch of version n is its
groups number Q(n) .. Q(n + 1) - 1, in the order of their opening. A group is opened only when the generation workers
have confirmed version g and its number is below Q(g + 1 + alpha): so it starts with g or later and is wanted by version
g + alpha at the latest. At most the groups of 1 + alpha batches are therefore open or buffered. What falls behind all
the same, because others overtook it, is evicted as stale, and its seed is played again. What the modes change in it is
in `Admission`.

Life. A scheduler begins with what an earlier attempt left (`Recovery`) and hands nothing out before `admit`; after
`close` it hands nothing out any more, and what is pending stays so for the next attempt. In between workers come and
go: what one that leaves in order hands in goes on at another under its id, what is lost with one is played again.

Witnesses. In some groups the redundant members play on when it is complete. They have ended in the books like all
others and belong to no group any more; they keep their slots, and when they come back they are counted and forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.admission import Admission
from rollart_hpc.control_plane.group import Group, Running
from rollart_hpc.control_plane.journal import (
    BatchFormed,
    Dispatched,
    Ended,
    Finished,
    GivenUp,
    GroupOpened,
    HandedIn,
    Record,
    Sent,
)
from rollart_hpc.control_plane.recovery import Recovery
from rollart_hpc.control_plane.rollout_statistics import waited_for
from rollart_hpc.control_plane.sample_buffer import SampleBuffer
from rollart_hpc.control_plane.task_cursor import Reason, TaskCursor
from rollart_hpc.control_plane.task_rollout import TaskRollout
from rollart_hpc.control_plane.worker_slots import WorkerSlots
from rollart_hpc.types import Outcome, Ticket, Trajectory, TurnLog

WORKER_LOST = "environment worker lost"
WORKER_LEFT = "environment worker left before its first action"

_OVERTAKEN = Reason(cause="older than the staleness bound")


@dataclass(slots=True, kw_only=True)
class Orders:
    """What is to be done, in this order: write the records, send the tickets, send the aborts."""

    records: list[Record] = field(default_factory=list[Record])
    tickets: dict[str, list[Ticket]] = field(default_factory=dict[str, list[Ticket]])
    """By environment worker."""
    aborts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Trajectory ids by environment worker."""


class RolloutScheduler:
    """The books and decisions of the rollout."""

    def __init__(self, config: RunConfig, recovery: Recovery, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds: what trajectories take, and how long groups wait."""
        self._config = config
        self._clock = clock
        self._ledger = recovery.ledger
        self._mix = config.task_mix()
        self._admission = Admission(config, self._mix, recovery.version)
        self.buffer = SampleBuffer(config.tasks, clock)
        self.trainer_version = recovery.step
        self.generation_version = -1
        self._first_version = recovery.version
        """What the generation workers have confirmed when the first ticket goes out, or a later one."""
        self._consumed = self._mix.until(recovery.version)
        self._place_of = {task: place for place, task in enumerate(config.tasks)}
        self.tasks = {
            task: TaskRollout(task, config, recovery.cursors.get(task, TaskCursor())) for task in config.tasks
        }
        self._groups: dict[str, Group] = {}
        self._by_trajectory: dict[str, Group] = {}
        self._workers = WorkerSlots()
        self._witnesses: dict[str, Running] = {}
        """Redundant members that play on, by id."""
        self.patience_s: float | None = None
        """How much longer a batch that could be formed waits for older groups; None where none could be formed."""
        self._has_waited = False
        self.waited_for = ""
        """The task whose group completed the last batch; empty when that was complete at once."""
        self._unsent: deque[str] = deque()
        self._logs = recovery.logs
        """Turns that running trajectories go on from, by id."""
        self._orders = Orders()
        self._is_open = False
        self._is_held = False
        self._take_over(recovery)

    def _take_over(self, recovery: Recovery) -> None:
        began = {one.group_id for one in (*recovery.returned, *recovery.logs.values())}
        for group in recovery.groups:
            self._groups[group.group_id] = group
            group.is_continued, group.opened_s = group.group_id in began, self._clock()
            for trajectory_id in group.running:
                self._by_trajectory[trajectory_id] = group
        self._unsent.extend(self._by_trajectory)
        for trajectory in recovery.returned:
            group = self._by_trajectory.get(trajectory.trajectory_id)
            if group is not None and trajectory.trajectory_id in group.running:
                self._settle(trajectory)
        for group in list(self._groups.values()):  # the config's group size may be larger now
            for place in range(len(group.finished) + len(group.running), group.size):
                self._dispatch(group, place, tries=0)

    # --- events ---------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Trajectories may be handed out from now on."""
        self._is_open = True
        self._advance()

    def close(self) -> None:
        """Nothing is handed out any more; what comes back is still taken, but of no witness."""
        self._is_open = False
        self._witnesses.clear()

    def may_load(self, version: int) -> bool:
        """Whether generation workers may load a version now: a newer one may have to wait for the end of a batch."""
        return not self._is_between_only(version) or not self._is_open or self._is_between_batches

    def hold(self, version: int) -> None:
        """It is being loaded: where it may be loaded between two batches only, nothing is begun until `release`."""
        self._is_held = self._is_between_only(version)

    def release(self) -> None:
        """The end of `hold`."""
        self._is_held = False
        self._advance()

    def _is_between_only(self, version: int) -> bool:
        return self._admission.is_by_batch and version > self.generation_version

    def worker_joined(self, member_id: str, capacity: int) -> None:
        """A (new) environment worker with that many slots."""
        self.worker_lost(member_id)
        self._workers.add(member_id, capacity)
        self._advance()

    def worker_lost(self, member_id: str) -> None:
        """An environment worker ended: what it played fails and is dispatched again; after `close` it stays pending."""
        held = self._remove(member_id)
        if self._is_open:
            for trajectory_id in held:
                self._fail(trajectory_id, WORKER_LOST)
        self._advance()

    def worker_leaving(self, member_id: str) -> None:
        """An environment worker is about to end in order: it gets nothing more, and hands in what it plays."""
        self._workers.close(member_id)

    def worker_left(self, member_id: str) -> None:
        """It has ended. What it had not begun goes to another with the turns that it was sent with, or as it was."""
        held = self._remove(member_id)
        if self._is_open:
            for trajectory_id in held:
                if log := self._logs.get(trajectory_id):
                    self._orders.records.append(HandedIn(log))
                    self._hand_on(log)
                else:
                    self._fail(trajectory_id, WORKER_LEFT)
        self._advance()

    def generation_confirmed(self, version: int) -> None:
        """All live generation workers serve ``version`` or a later one."""
        self.generation_version = max(self.generation_version, version)
        self._advance()

    def finished(self, trajectory: Trajectory) -> bool:
        """A trajectory came back. False: it came before, has ended already or is unknown, and belongs to no group."""
        group = self._by_trajectory.get(trajectory.trajectory_id)
        if group is None or trajectory.trajectory_id not in group.running:
            self._witnessed(trajectory)
            return False
        self._orders.records.append(Finished(trajectory))
        self._settle(trajectory)
        self._advance()
        return True

    def handed_in(self, log: TurnLog, worker: str) -> bool:
        """A running trajectory's turns came back: the run stops, or its worker leaves and another goes on with it.

        False: that worker does not play it (any more), and it is ignored.
        """
        group = self._by_trajectory.get(log.trajectory_id)
        member = group.running.get(log.trajectory_id) if group is not None else None
        if member is None or member.worker != worker:
            return False
        self._orders.records.append(HandedIn(log))
        if self._is_open:
            self._hand_on(log)
            self._advance()
        return True

    def form_batch(self) -> list[Group] | None:
        """One batch for the trainer's version, or None while it is not complete.

        Its order depends on what was asked for, never on what came back first.
        """
        self._evict_stale()
        quota = self._quota
        is_ready = self.buffer.ready(quota)
        self.patience_s = self._patience_s() if is_ready else None
        if not is_ready or self.patience_s:
            self._has_waited = True
            self._advance()
            return None
        self.patience_s = None
        batch = sorted(self.buffer.take(quota), key=lambda group: (self._place_of[group.task], group.index))
        self.waited_for, self._has_waited = waited_for(batch) if self._has_waited else "", False
        for group in batch:
            self.tasks[group.task].statistics.taken(group, self._clock())
            group.finished = group.in_order
        self._consumed = self._mix.until(self.trainer_version + 1)
        members = tuple(trajectory.trajectory_id for group in batch for trajectory in group.finished)
        self._orders.records.append(BatchFormed(self.trainer_version, members))
        self._advance()
        return batch

    def _patience_s(self) -> float:
        """How long to wait for groups for which this batch is the last one."""
        last, now_s = self._admission.oldest_allowed(self.trainer_version), self._clock()
        return max(
            (
                self.tasks[group.task].last_call.patience_s(now_s - group.opened_s, is_continued=group.is_continued)
                for group in self._groups.values()
                if group.oldest_version <= last
            ),
            default=0.0,
        )

    def trained(self, batch: list[Group]) -> None:
        """A batch was trained, perhaps once more after a resume: the trainer has the next version."""
        for group in batch:
            self.tasks[group.task].statistics.trained_on(group)
            for trajectory in group.finished:
                if self._ledger.is_pending(trajectory.trajectory_id):
                    self._end(trajectory.trajectory_id, Outcome.TRAINED)
        self.trainer_version += 1
        self._evict_stale()
        self._advance()

    def take_orders(self) -> Orders:
        """What has to be done since the last call."""
        orders, self._orders = self._orders, Orders()
        return orders

    # --- state ----------------------------------------------------------------------------------------

    def cursors(self) -> dict[str, TaskCursor]:
        """What a checkpoint keeps for a resume without the journal: everything opened and untrained comes again."""
        kept = {name: task.cursor.copy() for name, task in self.tasks.items()}
        for group in sorted((*self._groups.values(), *self.buffer.groups()), key=lambda group: group.index):
            kept[group.task].again.append(group.index)
        return kept

    def num_open(self, task: str) -> int:
        """Groups of a task that are being played."""
        return sum(1 for group in self._groups.values() if group.task == task)

    def waiting_for(self) -> str:
        """Why there is no batch yet, in words: for the log and the watchdog."""
        missing = ", ".join(f"{count} of {task}" for task, count in self.buffer.missing(self._quota).items())
        running = [
            (trajectory_id, member)
            for group in self._groups.values()
            for trajectory_id, member in group.running.items()
        ]
        oldest = ", ".join(
            f"{trajectory_id} on {member.worker or 'no worker yet'}" for trajectory_id, member in running[:3]
        )
        return (
            f"groups missing: {missing or 'none'}; {len(running)} trajectories run ({oldest or 'none'}); "
            f"generation has version {self.generation_version}, the trainer {self.trainer_version}; "
            f"{len(self._workers)} environment workers"
        )

    @property
    def _quota(self) -> dict[str, int]:
        """Groups of each task in the trainer's next batch."""
        return self._mix.of_batch(self.trainer_version)

    # --- opening --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Sends waiting tickets, then opens what the bounds admit, the task furthest behind first."""
        if not self._is_open or self._is_held or self.generation_version < 0:
            return
        if self._is_between_batches:
            self._admission.begin_batch(self.generation_version)
        self._send_tickets()
        while not self._unsent:
            admissible = [task for task in self._place_of if self._admits(task)]
            if not admissible or not self._workers:
                return
            self._open(min(admissible, key=lambda task: self._claimed(task) / self._config.tasks[task].weight))
            self._send_tickets()

    def _claimed(self, task: str) -> int:
        return self._consumed[task] + self.num_open(task) + self.buffer.count(task)

    def _admits(self, task: str) -> bool:
        """Within the bound; above that of the buffer's bytes only what the next batch cannot do without."""
        is_full = self.buffer.size_bytes >= self._config.rollout.buffer_mb << 20
        needed = self._mix.until(self.trainer_version + 1)[task]
        claimed = self._claimed(task)
        return claimed < self._admission.until(self.generation_version)[task] and (claimed < needed or not is_full)

    @property
    def _claims(self) -> dict[str, int]:
        return {task: self._claimed(task) for task in self._place_of}

    @property
    def _is_between_batches(self) -> bool:
        """Nothing is being played, and nothing is to be opened for the batches that have begun."""
        return not self._groups and self._admission.is_exhausted(self.generation_version, self._claims)

    def _open(self, name: str) -> None:
        task = self.tasks[name]
        index, num_redundant = task.next_index(), task.num_redundant
        group = Group(
            group_id=task.cursor.group_id(name, index),
            task=name,
            index=index,
            seed=task.seed(index),
            size=task.section.group_size,
            opened_version=self.generation_version,
            opened_s=self._clock(),
        )
        group.is_whole = group.has_witnesses or not (num_redundant or task.timeout_s or task.turn_timeout_s)
        task.cursor.open(index, group.group_id)
        self._groups[group.group_id] = group
        self._orders.records.append(
            GroupOpened(group.group_id, name, index, group.seed, group.opened_version),
        )
        for place in range(group.size + num_redundant):
            self._dispatch(group, place, tries=0)

    def _dispatch(self, group: Group, place: int, tries: int) -> None:
        trajectory_id = f"{group.group_id}.{group.num_dispatched}"
        group.num_dispatched += 1
        version = max(self.generation_version, self._first_version)
        group.running[trajectory_id] = Running(place=place, tries=tries, dispatched_version=version)
        self._by_trajectory[trajectory_id] = group
        self._ledger.dispatch(trajectory_id, group.task)
        self._orders.records.append(Dispatched(trajectory_id, group.group_id, place, tries))
        self._unsent.append(trajectory_id)

    def _send_tickets(self) -> None:
        while self._unsent and (worker := self._workers.freest()):
            trajectory_id = self._unsent.popleft()
            group = self._by_trajectory.get(trajectory_id)
            if group is None or trajectory_id not in group.running:
                continue
            member, task, log = group.running[trajectory_id], self.tasks[group.task], self._logs.get(trajectory_id)
            member.worker, member.sent_s = worker, self._clock() if log is None else None
            self._workers.hold(worker, trajectory_id)
            ticket = Ticket(
                trajectory_id=trajectory_id,
                group_id=group.group_id,
                task=group.task,
                seed=group.seed,
                admitted_version=member.dispatched_version,
                timeout_s=None if group.is_whole else task.timeout_s,
                turn_timeout_s=None if group.is_whole else task.turn_timeout_s,
                log=log,
            )
            self._orders.records.append(Sent(trajectory_id, worker))
            self._orders.tickets.setdefault(worker, []).append(ticket)

    def _hand_on(self, log: TurnLog) -> None:
        """A running trajectory waits for a worker that goes on with it, before what is new."""
        trajectory_id = log.trajectory_id
        group = self._by_trajectory[trajectory_id]
        group.is_continued = True
        member = group.running[trajectory_id]
        self._workers.release(member.worker, trajectory_id)
        member.worker = None
        if log.start_version is not None:
            member.dispatched_version = log.start_version
        self._logs[trajectory_id] = log
        self._unsent.appendleft(trajectory_id)

    # --- ending ---------------------------------------------------------------------------------------

    def _settle(self, trajectory: Trajectory) -> None:
        """What becomes of a trajectory that came back."""
        group = self._by_trajectory[trajectory.trajectory_id]
        duration_s = self._lasted_s(group.running[trajectory.trajectory_id])
        if duration_s is not None:
            group.durations_s[trajectory.trajectory_id] = duration_s
        self.tasks[group.task].returned(trajectory, duration_s, is_whole=group.is_whole)
        if trajectory.failure:
            self._fail(
                trajectory.trajectory_id,
                trajectory.failure,
                detail=trajectory.failure_detail,
                retryable=trajectory.retryable,
            )
        elif trajectory.truncated and self._config.tasks[group.task].drop_truncated:
            self._fail(trajectory.trajectory_id, "cut by the context or the turn limit", outcome=Outcome.TRUNCATED)
        else:
            self._accept(group, trajectory)

    def _accept(self, group: Group, trajectory: Trajectory) -> None:
        self._release(group, trajectory.trajectory_id)
        group.finished.append(trajectory)
        if trajectory.start_version < self._admission.oldest_allowed(self.trainer_version):
            self._give_up(group, Outcome.STALE, _OVERTAKEN)
        elif group.is_complete:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        task = self.tasks[group.task]
        for trajectory_id, member in list(group.running.items()):
            task.statistics.num_redundant += 1
            if group.is_whole and member.worker is not None and self._is_open:
                self._witnesses[trajectory_id] = member
            self._cut(group, trajectory_id, Outcome.REDUNDANT, "the group was complete")
        del self._groups[group.group_id]
        self.buffer.put(group)
        task.completed(group)

    def _evict_stale(self) -> None:
        oldest_allowed = self._admission.oldest_allowed(self.trainer_version)
        behind = [group for group in self._groups.values() if group.oldest_version < oldest_allowed]
        for group in (*self.buffer.evict(oldest_allowed), *behind):
            self._give_up(group, Outcome.STALE, _OVERTAKEN)

    def _give_up(self, group: Group, outcome: Outcome, reason: Reason) -> None:
        """Ends a whole group; a stale one's seed is played again, a poisoned one's never."""
        task = self.tasks[group.task]
        self._orders.records.append(GivenUp(group.group_id, outcome, reason))
        for trajectory_id, member in list(group.running.items()):
            lasted_s = self._lasted_s(member)
            if outcome is Outcome.STALE and group.is_whole and lasted_s is not None:
                task.overtaken(lasted_s)
            self._cut(group, trajectory_id, outcome, reason.cause)
        for trajectory in group.finished:
            self._end(trajectory.trajectory_id, outcome, reason.cause)
        self._groups.pop(group.group_id, None)
        task.gave_up(group, outcome, reason)

    def _fail(
        self,
        trajectory_id: str,
        cause: str,
        *,
        detail: str = "",
        retryable: bool = True,
        outcome: Outcome = Outcome.FAILED,
    ) -> None:
        """Ends one member and fills its place again, alone; a place that fails too often poisons the group."""
        group = self._by_trajectory[trajectory_id]
        member = self._release(group, trajectory_id)
        self._end(trajectory_id, outcome, cause)
        tries = member.tries + (0 if cause in (WORKER_LOST, WORKER_LEFT) else 1)
        if retryable and tries <= self._config.rollout.max_refills:
            self._dispatch(group, member.place, tries)
        else:
            ended = Outcome.TRUNCATED if outcome is Outcome.TRUNCATED else Outcome.POISONED
            self._give_up(group, ended, Reason(cause=cause, detail=detail, num_failures=tries))

    def _cut(self, group: Group, trajectory_id: str, outcome: Outcome, cause: str) -> None:
        """Ends a running member that is not wanted any more; a witness plays on."""
        member = self._release(group, trajectory_id)
        if member.worker is not None and trajectory_id not in self._witnesses:
            self._orders.aborts.setdefault(member.worker, []).append(trajectory_id)
        self._end(trajectory_id, outcome, cause)

    def _release(self, group: Group, trajectory_id: str) -> Running:
        """Takes a member off the running ones and frees its slot, which a witness keeps."""
        member = group.running.pop(trajectory_id)
        if trajectory_id not in self._witnesses:
            self._workers.release(member.worker, trajectory_id)
        self._logs.pop(trajectory_id, None)
        return member

    def _witnessed(self, trajectory: Trajectory) -> None:
        """Counts a witness that came back; others that have ended are ignored."""
        member = self._witnesses.pop(trajectory.trajectory_id, None)
        if member is None:
            return
        self._workers.release(member.worker, trajectory.trajectory_id)
        task, duration_s = self.tasks[trajectory.task], self._lasted_s(member)
        task.returned(trajectory, duration_s, is_whole=True)
        if not trajectory.failure:
            task.statistics.witnesses.add(trajectory, duration_s)
        self._advance()

    def _remove(self, worker: str) -> list[str]:
        """Takes a worker off and forgets its witnesses; returns the members of groups that it played."""
        return [one for one in self._workers.remove(worker) if self._witnesses.pop(one, None) is None]

    def _lasted_s(self, member: Running) -> float | None:
        return None if member.sent_s is None else self._clock() - member.sent_s

    def _end(self, trajectory_id: str, outcome: Outcome, cause: str = "") -> None:
        self._ledger.end(trajectory_id, outcome, cause)
        self._by_trajectory.pop(trajectory_id, None)
        self._orders.records.append(Ended(trajectory_id, outcome, cause))
