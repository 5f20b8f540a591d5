"""RolloutScheduler: which groups are opened, who plays their members, how each one ends (paper section 6).

A pure state machine: events go in through its methods, orders come out of `take_orders`. It alone moves
trajectories in the ledger, so the staleness bound, the buffer's bounds and the books have one owner.

The bound. A batch of version n is the groups number n*Q .. (n+1)*Q - 1 of a task (Q: its groups per batch), in the
order of their opening. A group is opened only when the generation workers have confirmed version g and its number
is below (g + 1 + alpha) * Q: so it starts with g or later and is wanted by version g + alpha at the latest. At most
(1 + alpha) * Q groups of a task are therefore open or buffered. What falls behind all the same, because others
overtook it, is evicted as stale, and its seed is played again.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import msgspec

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.group import Group, Running
from rollart_hpc.control_plane.journal import BatchFormed, Dispatched, Ended, Finished, Record
from rollart_hpc.control_plane.ledger import Ledger
from rollart_hpc.control_plane.sample_buffer import SampleBuffer
from rollart_hpc.control_plane.seeds import seed_at
from rollart_hpc.errors import RollartError
from rollart_hpc.types import Outcome, Ticket, Trajectory

WORKER_LOST = "environment worker lost"
OVERTAKEN = "older than the staleness bound"
_MAX_GIVEN_UP_IN_A_ROW = 8


class TaskBrokenError(RollartError):
    """A task gives no trajectory at all."""


@dataclass(slots=True, kw_only=True)
class Orders:
    """What is to be done, in this order: write the records, send the tickets, send the aborts."""

    records: list[Record] = field(default_factory=list[Record])
    tickets: dict[str, list[Ticket]] = field(default_factory=dict[str, list[Ticket]])
    """By environment worker."""
    aborts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Trajectory ids by environment worker."""


class TaskCursor(msgspec.Struct, kw_only=True):
    """Where a task is in its order of seeds; part of a checkpoint."""

    next_index: int = 0
    again: list[int] = []
    """Indices that were opened and not trained: they come before new ones."""
    poisoned: list[int] = []
    """Seeds that are never played again."""


@dataclass(slots=True, kw_only=True)
class _Slots:
    capacity: int
    held: set[str] = field(default_factory=set[str])


class RolloutScheduler:
    """The books and decisions of the rollout."""

    def __init__(
        self, config: RunConfig, ledger: Ledger, *, step: int, cursors: dict[str, TaskCursor], attempt: int = 1
    ) -> None:
        self._config = config
        self._alpha = config.rollout.alpha
        self._attempt = attempt
        self._ledger = ledger
        self.quota = config.groups_per_task()
        self.buffer = SampleBuffer(config.tasks)
        self.trainer_version = step
        self.generation_version = -1
        self._consumed = {task: count * step for task, count in self.quota.items()}
        self._cursors = {task: cursors.get(task, TaskCursor()) for task in config.tasks}
        self._groups: dict[str, Group] = {}
        self._by_trajectory: dict[str, Group] = {}
        self._workers: dict[str, _Slots] = {}
        self._unsent: deque[str] = deque()
        self._orders = Orders()
        self._num_opened = 0
        self._given_up_in_a_row: Counter[str] = Counter()
        self._last_detail: defaultdict[str, str] = defaultdict(str)

    # --- events ---------------------------------------------------------------------------------------

    def worker_joined(self, member_id: str, capacity: int) -> None:
        """A (new) environment worker with that many slots."""
        self.worker_lost(member_id)
        self._workers[member_id] = _Slots(capacity=capacity)
        self._advance()

    def worker_lost(self, member_id: str) -> None:
        """An environment worker ended: what it played has failed and is dispatched again."""
        slots = self._workers.pop(member_id, None)
        for trajectory_id in sorted(slots.held) if slots else ():
            self._fail(trajectory_id, WORKER_LOST)
        self._advance()

    def generation_confirmed(self, version: int) -> None:
        """All live generation workers serve ``version`` or a later one."""
        self.generation_version = max(self.generation_version, version)
        self._advance()

    def finished(self, trajectory: Trajectory) -> bool:
        """A trajectory came back. False: it came before, has ended already or is unknown, and is ignored."""
        group = self._by_trajectory.get(trajectory.trajectory_id)
        if group is None or trajectory.trajectory_id not in group.running:
            return False
        self._orders.records.append(Finished(trajectory))
        if trajectory.failure:
            self._last_detail[group.task] = trajectory.failure_detail
            self._fail(trajectory.trajectory_id, trajectory.failure, retryable=trajectory.retryable)
        elif trajectory.truncated and self._config.tasks[group.task].drop_truncated:
            self._fail(trajectory.trajectory_id, "cut by the context or the turn limit", outcome=Outcome.TRUNCATED)
        else:
            self._accept(group, trajectory)
        self._advance()
        return True

    def form_batch(self) -> list[Group] | None:
        """One batch for the trainer's version, or None while it is not complete."""
        self._evict_stale()
        if not self.buffer.ready(self.quota):
            self._advance()
            return None
        batch = self.buffer.take(self.quota)
        for task, count in self.quota.items():
            self._consumed[task] += count
        self._orders.records.append(BatchFormed(self.trainer_version, tuple(group.group_id for group in batch)))
        self._advance()
        return batch

    def trained(self, batch: list[Group]) -> None:
        """A batch was trained: the trainer has the next version."""
        for group in batch:
            for trajectory in group.finished:
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
        """What a checkpoint keeps: everything opened and untrained comes again after a resume."""
        kept: dict[str, TaskCursor] = {}
        for task, cursor in self._cursors.items():
            alive = [group.index for group in (*self._groups.values(), *self.buffer.groups()) if group.task == task]
            kept[task] = TaskCursor(
                next_index=cursor.next_index, again=sorted(alive) + cursor.again, poisoned=list(cursor.poisoned)
            )
        return kept

    def num_open(self, task: str) -> int:
        """Groups of a task that are being played."""
        return sum(1 for group in self._groups.values() if group.task == task)

    def waiting_for(self) -> str:
        """Why there is no batch yet, in words: for the log and the watchdog."""
        missing = ", ".join(f"{count} of {task}" for task, count in self.buffer.missing(self.quota).items())
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

    # --- opening --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Sends waiting tickets, then opens what the bounds admit, the task furthest behind first."""
        self._send_tickets()
        while not self._unsent:
            admissible = [task for task in self.quota if self._admits(task)]
            if not admissible or not self._workers:
                return
            self._open(min(admissible, key=lambda task: self._claimed(task) / self.quota[task]))
            self._send_tickets()

    def _claimed(self, task: str) -> int:
        return self._consumed[task] + self.num_open(task) + self.buffer.count(task)

    def _admits(self, task: str) -> bool:
        if self.generation_version < 0 or self.buffer.size_bytes >= self._config.rollout.buffer_mb << 20:
            return False
        batches = min(self.generation_version + 1 + self._alpha, self._config.run.steps)
        return self._claimed(task) < batches * self.quota[task]

    def _open(self, task: str) -> None:
        section, index = self._config.tasks[task], self._next_index(task)
        group = Group(
            group_id=f"{task}-{index}-{self._attempt}.{self._num_opened}",
            task=task,
            index=index,
            seed=self._seed(task, index),
            size=section.group_size,
            opened_version=self.generation_version,
        )
        self._num_opened += 1
        self._groups[group.group_id] = group
        for place in range(section.group_size + section.redundancy):
            self._dispatch(group, place, tries=0)

    def _next_index(self, task: str) -> int:
        cursor, num_seeds = self._cursors[task], self._config.tasks[task].num_seeds
        if num_seeds is not None and len(set(cursor.poisoned)) >= num_seeds:
            raise TaskBrokenError(
                f"task {task}: all of its {num_seeds} seeds are poisoned; see the ledger for the causes"
            )
        while True:
            if cursor.again:
                index = cursor.again.pop(0)
            else:
                index = cursor.next_index
                cursor.next_index += 1
            if self._seed(task, index) not in cursor.poisoned:
                return index

    def _seed(self, task: str, index: int) -> int:
        return seed_at(self._config.run.seed, task, index, self._config.tasks[task].num_seeds)

    def _dispatch(self, group: Group, place: int, tries: int) -> None:
        trajectory_id = f"{group.group_id}.{group.num_dispatched}"
        group.num_dispatched += 1
        group.running[trajectory_id] = Running(place=place, tries=tries, dispatched_version=self.generation_version)
        self._by_trajectory[trajectory_id] = group
        self._ledger.dispatch(trajectory_id, group.task)
        self._orders.records.append(Dispatched(trajectory_id, group.group_id, group.task, group.seed))
        self._unsent.append(trajectory_id)

    def _send_tickets(self) -> None:
        while self._unsent and (worker := self._freest_worker()):
            trajectory_id = self._unsent.popleft()
            group = self._by_trajectory.get(trajectory_id)
            if group is None:
                continue
            group.running[trajectory_id].worker = worker
            self._workers[worker].held.add(trajectory_id)
            ticket = Ticket(
                trajectory_id=trajectory_id,
                group_id=group.group_id,
                task=group.task,
                seed=group.seed,
                admitted_version=group.running[trajectory_id].dispatched_version,
            )
            self._orders.tickets.setdefault(worker, []).append(ticket)

    def _freest_worker(self) -> str | None:
        free = {member_id: slots.capacity - len(slots.held) for member_id, slots in self._workers.items()}
        best = max(free, key=lambda member_id: free[member_id], default=None)
        return best if best is not None and free[best] > 0 else None

    # --- ending ---------------------------------------------------------------------------------------

    def _accept(self, group: Group, trajectory: Trajectory) -> None:
        self._release(group, trajectory.trajectory_id)
        group.finished.append(trajectory)
        if trajectory.start_version < self.trainer_version - self._alpha:
            self._give_up(group, Outcome.STALE, OVERTAKEN)
        elif group.is_complete:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        for trajectory_id in list(group.running):
            self._cut(group, trajectory_id, Outcome.REDUNDANT, "the group was complete")
        self._given_up_in_a_row[group.task] = 0
        del self._groups[group.group_id]
        self.buffer.put(group)

    def _evict_stale(self) -> None:
        oldest_allowed = self.trainer_version - self._alpha
        behind = [group for group in self._groups.values() if group.oldest_version < oldest_allowed]
        for group in (*self.buffer.evict(oldest_allowed), *behind):
            self._give_up(group, Outcome.STALE, OVERTAKEN)

    def _give_up(self, group: Group, outcome: Outcome, cause: str) -> None:
        """Ends a whole group; a stale one's seed is played again, a poisoned one's never."""
        for trajectory_id in list(group.running):
            self._cut(group, trajectory_id, outcome, cause)
        for trajectory in group.finished:
            self._end(trajectory.trajectory_id, outcome, cause)
        self._groups.pop(group.group_id, None)
        cursor = self._cursors[group.task]
        if outcome is Outcome.STALE:
            cursor.again.append(group.index)
            return
        if outcome is Outcome.POISONED:
            cursor.poisoned.append(group.seed)
        self._given_up_in_a_row[group.task] += 1
        if self._given_up_in_a_row[group.task] >= _MAX_GIVEN_UP_IN_A_ROW:
            raise TaskBrokenError(
                f"task {group.task}: {_MAX_GIVEN_UP_IN_A_ROW} groups in a row were given up and none was completed; "
                f"the last one's cause is {cause!r} ({self._last_detail[group.task]}); try the environment and the "
                "reward by hand"
            )

    def _fail(
        self, trajectory_id: str, cause: str, *, retryable: bool = True, outcome: Outcome = Outcome.FAILED
    ) -> None:
        """Ends one member and fills its place again, alone; a place that fails too often poisons the group."""
        group = self._by_trajectory[trajectory_id]
        member = self._release(group, trajectory_id)
        self._end(trajectory_id, outcome, cause)
        tries = member.tries + (0 if cause == WORKER_LOST else 1)
        if retryable and tries <= self._config.rollout.max_refills:
            self._dispatch(group, member.place, tries)
        else:
            self._give_up(group, Outcome.TRUNCATED if outcome is Outcome.TRUNCATED else Outcome.POISONED, cause)

    def _cut(self, group: Group, trajectory_id: str, outcome: Outcome, cause: str) -> None:
        """Ends a running member that is not wanted any more."""
        member = self._release(group, trajectory_id)
        if member.worker is not None:
            self._orders.aborts.setdefault(member.worker, []).append(trajectory_id)
        self._end(trajectory_id, outcome, cause)

    def _release(self, group: Group, trajectory_id: str) -> Running:
        """Takes a member off the running ones and frees its slot."""
        member = group.running.pop(trajectory_id)
        if member.worker in self._workers:
            self._workers[member.worker].held.discard(trajectory_id)
        return member

    def _end(self, trajectory_id: str, outcome: Outcome, cause: str = "") -> None:
        self._ledger.end(trajectory_id, outcome, cause)
        self._by_trajectory.pop(trajectory_id, None)
        self._orders.records.append(Ended(trajectory_id, outcome, cause))
