from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollart_hpc.control_plane import group as group_module
from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.journal import Dispatched, Ended, Finished, GroupOpened, HandedIn, Record, Sent
from rollart_hpc.control_plane.ledger import Ledger
from rollart_hpc.control_plane.recovery import Recovery, recover
from rollart_hpc.control_plane.rollout_scheduler import WORKER_LEFT, WORKER_LOST, RolloutScheduler
from rollart_hpc.control_plane.task_rollout import TaskBrokenError
from rollart_hpc.types import Outcome, Ticket, TurnLog
from tests.builders import IDENTITY, run_config, trajectory, turn_log


def scheduler_of(config, step: int = 0, cursors=None) -> tuple[RolloutScheduler, Ledger]:
    recovery = Recovery(step=step, cursors=cursors or {})
    scheduler = RolloutScheduler(config, recovery)
    scheduler.admit()
    return scheduler, recovery.ledger


def tickets_of(scheduler: RolloutScheduler) -> list[Ticket]:
    return [ticket for tickets in scheduler.take_orders().tickets.values() for ticket in tickets]


def started(config, capacity: int = 64) -> tuple[RolloutScheduler, Ledger, list[Ticket]]:
    scheduler, ledger = scheduler_of(config)
    scheduler.worker_joined("w", capacity)
    scheduler.generation_confirmed(0)
    return scheduler, ledger, tickets_of(scheduler)


def test_nothing_is_dispatched_before_a_version_is_confirmed():
    scheduler, ledger = scheduler_of(run_config())
    scheduler.worker_joined("w", 64)
    assert tickets_of(scheduler) == []
    assert ledger.balance().dispatched == 0


@pytest.mark.parametrize("alpha", [0, 1, 3])
def test_admission_is_the_staleness_bound(alpha: int):
    _, _, tickets = started(run_config(alpha=alpha))
    assert len({ticket.group_id for ticket in tickets}) == 2 * (1 + alpha)


def test_nothing_is_dispatched_beyond_the_last_step():
    config = run_config(alpha=3)
    config = config.model_copy(update={"run": config.run.model_copy(update={"steps": 1})})
    _, _, tickets = started(config)
    assert len({ticket.group_id for ticket in tickets}) == 2


def test_no_worker_gets_more_than_its_slots():
    scheduler, _, tickets = started(run_config(), capacity=3)
    assert len(tickets) == 3
    scheduler.finished(trajectory(tickets[0]))
    assert len(tickets_of(scheduler)) == 1


def test_members_of_a_group_share_its_seed():
    _, _, tickets = started(run_config())
    by_group = {ticket.group_id: {t.seed for t in tickets if t.group_id == ticket.group_id} for ticket in tickets}
    assert all(len(seeds) == 1 for seeds in by_group.values())
    assert len({next(iter(seeds)) for seeds in by_group.values()}) == len(by_group)


@pytest.mark.parametrize("num_finished", [1, 2], ids=["group still open", "group complete"])
def test_a_trajectory_that_comes_twice_counts_once(num_finished: int):
    scheduler, ledger, tickets = started(run_config(alpha=0))
    for ticket in tickets[:num_finished]:
        scheduler.finished(trajectory(ticket, reward=1.0))
    scheduler.take_orders()
    scheduler.finished(trajectory(tickets[0], reward=0.0))
    scheduler.finished(trajectory(tickets[0], failure="environment died"))
    assert scheduler.take_orders().records == []
    assert ledger.is_pending(tickets[0].trajectory_id)


def test_a_failed_member_is_filled_again_alone_with_the_group_s_seed():
    scheduler, ledger, tickets = started(run_config(alpha=0))
    scheduler.finished(trajectory(tickets[0], failure="environment step_timeout"))
    (again,) = tickets_of(scheduler)
    assert (again.group_id, again.seed) == (tickets[0].group_id, tickets[0].seed)
    assert again.trajectory_id != tickets[0].trajectory_id
    assert ledger.outcome(tickets[0].trajectory_id) is Outcome.FAILED
    assert ledger.is_pending(tickets[1].trajectory_id)


def test_a_place_that_always_fails_poisons_its_group_and_another_seed_is_played():
    scheduler, ledger, tickets = started(run_config(alpha=0, max_refills=2))
    ticket = tickets[0]
    for _ in range(3):
        scheduler.finished(trajectory(ticket, failure="environment raised"))
        fresh = tickets_of(scheduler)
        ticket = next((one for one in fresh if one.group_id == ticket.group_id), ticket)
    assert ledger.balance().outcomes == {"failed": 3, "poisoned": 1}
    assert {one.seed for one in fresh}.isdisjoint({tickets[0].seed})


def test_a_task_that_gives_nothing_ends_the_run_with_its_cause():
    scheduler, _, tickets = started(run_config(alpha=0, max_refills=0))
    with pytest.raises(TaskBrokenError, match=r"task a: 8 groups in a row .* 'reward raised' .boom."):
        for _ in range(8):
            scheduler.finished(trajectory(tickets[0], failure="reward raised", failure_detail="boom"))
            tickets = tickets_of(scheduler)


def test_what_a_lost_worker_played_is_played_by_another_and_blames_no_seed():
    scheduler, ledger, tickets = started(run_config(alpha=0, max_refills=0))
    scheduler.worker_joined("v", 64)
    scheduler.worker_lost("w")
    orders = scheduler.take_orders()
    assert {ticket.seed for ticket in orders.tickets["v"]} == {ticket.seed for ticket in tickets}
    assert ledger.balance().causes == {f"failed: {WORKER_LOST}": len(tickets)}


def leaving() -> tuple[RolloutScheduler, Ledger, list[Ticket]]:
    """With a worker "w" that has all tickets and is about to leave, and a worker "v" that has none."""
    scheduler, ledger, tickets = started(run_config(alpha=0, max_refills=0))
    scheduler.worker_joined("v", 64)
    scheduler.worker_leaving("w")
    return scheduler, ledger, tickets


def test_a_worker_that_leaves_gets_nothing_more():
    scheduler, _, tickets = started(run_config(alpha=0))
    scheduler.worker_leaving("w")
    scheduler.finished(trajectory(tickets[0], failure="environment died"))
    assert tickets_of(scheduler) == []
    scheduler.worker_joined("v", 64)
    assert [ticket.group_id for ticket in scheduler.take_orders().tickets["v"]] == [tickets[0].group_id]


def test_what_a_leaving_worker_hands_in_goes_on_elsewhere_at_once_under_its_id():
    scheduler, ledger, tickets = leaving()
    logs = [turn_log(ticket, version=3) for ticket in tickets]
    assert all(scheduler.handed_in(log, "w") for log in logs)
    scheduler.worker_left("w")
    orders = scheduler.take_orders()
    assert {ticket.trajectory_id: ticket.log for ticket in orders.tickets["v"]} == {
        log.trajectory_id: log for log in logs
    }
    assert [ticket.admitted_version for ticket in orders.tickets["v"]] == [3] * len(tickets)
    assert ledger.balance().pending == ledger.balance().dispatched == len(tickets)
    assert orders.records[:2] == [HandedIn(logs[0]), Sent(logs[0].trajectory_id, "v")]


def test_what_was_handed_in_goes_out_before_what_is_new():
    scheduler, _, tickets = started(run_config(alpha=0), capacity=2)
    scheduler.worker_leaving("w")
    scheduler.handed_in(turn_log(tickets[1]), "w")
    scheduler.worker_joined("v", 1)
    assert [ticket.trajectory_id for ticket in tickets_of(scheduler)] == [tickets[1].trajectory_id]


@pytest.mark.parametrize("worker", ["w", "x"], ids=["that comes again", "of another worker"])
def test_a_turn_log_counts_once_and_from_the_worker_that_plays_it(worker: str):
    scheduler, _, tickets = leaving()
    scheduler.handed_in(turn_log(tickets[0]), "w")
    scheduler.take_orders()
    assert not scheduler.handed_in(turn_log(tickets[0], version=1), worker)
    assert not scheduler.handed_in(turn_log(tickets[1], version=1), "x")
    assert scheduler.take_orders().records == []


def test_what_a_worker_had_not_begun_when_it_left_goes_on_from_the_turns_that_it_was_sent_with():
    scheduler, ledger, tickets = leaving()
    log = turn_log(tickets[0])
    scheduler.handed_in(log, "w")
    scheduler.worker_joined("u", 64)
    scheduler.worker_left("v")
    (ticket,) = scheduler.take_orders().tickets["u"]
    assert (ticket.trajectory_id, ticket.log) == (log.trajectory_id, log)
    scheduler.worker_left("w")
    assert {ticket.seed for ticket in scheduler.take_orders().tickets["u"]} == {one.seed for one in tickets}
    assert ledger.balance().causes == {f"failed: {WORKER_LEFT}": len(tickets) - 1}


def test_a_worker_that_is_lost_while_it_goes_on_with_a_trajectory_costs_it():
    scheduler, ledger, tickets = leaving()
    scheduler.handed_in(turn_log(tickets[0]), "w")
    scheduler.worker_lost("v")
    assert ledger.outcome(tickets[0].trajectory_id) is Outcome.FAILED


def test_a_batch_waits_for_what_is_handed_on_and_would_be_too_old_after_it():
    scheduler, _, tickets = started(run_config(alpha=1))
    scheduler.worker_joined("v", 64)
    scheduler.handed_in(turn_log(tickets[0]), "w")
    for ticket in tickets[2:]:
        scheduler.finished(trajectory(ticket))
    first = scheduler.form_batch()
    assert first is not None
    scheduler.trained(first)
    scheduler.generation_confirmed(1)
    for ticket in tickets_of(scheduler):
        if ticket.group_id != tickets[0].group_id:
            scheduler.finished(trajectory(ticket, version=1))
    assert scheduler.form_batch() is None
    for ticket in tickets[:2]:
        scheduler.finished(trajectory(ticket))
    batch = scheduler.form_batch()
    assert batch is not None
    assert tickets[0].trajectory_id in members_of(batch)


def test_redundant_members_are_cut_when_the_group_is_complete():
    scheduler, ledger, tickets = started(run_config(alpha=0, tasks={"a": {"redundancy": 2}}))
    group = [ticket for ticket in tickets if ticket.group_id == tickets[0].group_id]
    assert len(group) == 4
    for ticket in group[:2]:
        scheduler.finished(trajectory(ticket))
    assert scheduler.take_orders().aborts == {"w": [ticket.trajectory_id for ticket in group[2:]]}
    assert [ledger.outcome(ticket.trajectory_id) for ticket in group[2:]] == [Outcome.REDUNDANT] * 2


def test_a_late_or_unknown_trajectory_changes_nothing():
    scheduler, ledger, tickets = started(run_config(alpha=0))
    scheduler.finished(trajectory(tickets[0], failure="environment died"))
    before = ledger.balance()
    scheduler.take_orders()
    scheduler.finished(trajectory(tickets[0]))
    assert scheduler.take_orders().records == []
    assert ledger.balance() == before


def test_a_group_that_was_overtaken_is_stale_and_its_seed_comes_again():
    scheduler, ledger, tickets = started(run_config(alpha=0))
    slow, fast = tickets[:2], tickets[2:]
    scheduler.generation_confirmed(0)
    for ticket in fast:
        scheduler.finished(trajectory(ticket))
    assert scheduler.form_batch() is None
    scheduler.trainer_version = 1
    scheduler.generation_confirmed(1)
    assert scheduler.form_batch() is None
    assert {ledger.outcome(ticket.trajectory_id) for ticket in tickets} == {Outcome.STALE}
    assert {ticket.seed for ticket in slow} <= {ticket.seed for ticket in tickets_of(scheduler)}


def test_truncated_members_are_dropped_and_replaced_only_where_the_task_says_so():
    scheduler, ledger, tickets = started(run_config(alpha=0, tasks={"a": {"drop_truncated": True}}))
    scheduler.finished(trajectory(tickets[0], truncated=True))
    assert ledger.outcome(tickets[0].trajectory_id) is Outcome.TRUNCATED
    assert len(tickets_of(scheduler)) == 1
    scheduler, ledger, tickets = started(run_config(alpha=0))
    scheduler.finished(trajectory(tickets[0], truncated=True))
    assert ledger.is_pending(tickets[0].trajectory_id)


def test_tasks_get_their_share_of_every_batch():
    config = run_config(groups_per_step=5, tasks={"a": {"weight": 1.0}, "b": {"weight": 4.0}})
    scheduler, _, tickets = started(config)
    for ticket in tickets:
        scheduler.finished(trajectory(ticket))
    batch = scheduler.form_batch()
    assert batch is not None
    assert [group.task for group in batch] == ["a", "b", "b", "b", "b"]


def test_a_resumed_run_plays_untrained_seeds_first_and_skips_trained_ones():
    config = run_config(alpha=1)
    scheduler, _, tickets = started(config)
    for ticket in tickets[:4]:
        scheduler.finished(trajectory(ticket))
    batch = scheduler.form_batch()
    assert batch is not None
    scheduler.trained(batch)
    resumed, _ = scheduler_of(config, step=1, cursors=scheduler.cursors())
    resumed.worker_joined("w", 64)
    resumed.generation_confirmed(1)
    seeds = [ticket.seed for ticket in tickets_of(resumed)]
    assert {ticket.seed for ticket in tickets[4:]} <= set(seeds)
    assert {ticket.seed for ticket in tickets[:4]}.isdisjoint(seeds)


def members_of(batch: list[Group]) -> list[str]:
    return [member.trajectory_id for group in batch for member in group.finished]


@settings(max_examples=120, stateful_step_count=60, deadline=None)
class SchedulerRules(RuleBasedStateMachine):
    """Any order of events, kills and stops of whole attempts among them, keeps the bound, the books and the groups
    whole; nothing that came back plays again, and batches since the checkpoint come back as they were. No slot is idle
    while the bound admits. Every second group has witnesses, of which no token is trained."""

    @initialize(alpha=st.integers(0, 3), redundancy=st.integers(0, 2), capacity=st.integers(1, 12))
    def start(self, alpha: int, redundancy: int, capacity: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(group_module, "_WITNESSED", 2)
        self.leaving = ""
        self.workers: set[str] = set()
        self.witnesses: set[str] = set()
        self.seeds: dict[str, int] = {}
        self.members: defaultdict[str, set[str]] = defaultdict(set)
        """Ids of all that were dispatched, by group."""
        self.config = run_config(
            alpha=alpha,
            groups_per_step=3,
            max_refills=100,
            tasks={"a": {"redundancy": redundancy}, "b": {"weight": 1.7, "group_size": 3, "redundancy": 1}},
        )
        self.capacity = capacity
        self.scheduler, self.ledger = scheduler_of(self.config)
        self.journal: list[Record] = []
        self.batches: list[list[str]] = []
        self.checkpoint = ControllerState(step=0, cursors={}, model=IDENTITY)
        self.returned: set[str] = set()
        self.playing: dict[str, tuple[str, Ticket, int]] = {}
        self.logs: dict[str, TurnLog] = {}
        """Newest of what was handed in."""
        self.trained_ids: set[str] = set()
        self.ended: dict[str, Outcome] = {}
        self.join("w0")

    def teardown(self) -> None:
        self.patch.undo()

    def settle(self) -> None:
        orders = self.scheduler.take_orders()
        self.journal += orders.records
        for record in orders.records:
            if isinstance(record, GroupOpened):
                self.seeds[record.group_id] = record.seed
            elif isinstance(record, Dispatched):
                self.members[record.group_id].add(record.trajectory_id)
        for worker, tickets in orders.tickets.items():
            for ticket in tickets:
                assert ticket.trajectory_id not in self.returned, "played again after it came back"
                assert worker != self.leaving, "given to a worker that leaves"
                assert ticket.seed == self.seeds[ticket.group_id]
                assert ticket.trajectory_id in self.members[ticket.group_id]
                assert ticket.log == self.logs.get(ticket.trajectory_id), "the turns so far were lost"
                version = self.scheduler.generation_version if ticket.log is None else ticket.log.start_version
                assert version is not None
                self.playing[ticket.trajectory_id] = (worker, ticket, version)
        for trajectory_ids in orders.aborts.values():
            for trajectory_id in trajectory_ids:
                self.playing.pop(trajectory_id, None)
        for record in orders.records:
            if isinstance(record, Ended):
                assert record.trajectory_id not in self.ended, "ended twice"
                self.ended[record.trajectory_id] = record.outcome
                if record.trajectory_id in self.playing:
                    assert record.outcome is Outcome.REDUNDANT, "ended and neither aborted nor a witness"
                    self.witnesses.add(record.trajectory_id)
            elif isinstance(record, Finished):
                assert record.trajectory.trajectory_id not in self.trained_ids
                self.returned.add(record.trajectory.trajectory_id)

    @rule(worker=st.sampled_from(["w0", "w1"]))
    def join(self, worker: str) -> None:
        self.workers.add(worker)
        self.forget(worker)
        self.scheduler.worker_joined(worker, self.capacity)
        self.settle()

    @rule(worker=st.sampled_from(["w0", "w1"]))
    def lose(self, worker: str) -> None:
        self.workers.discard(worker)
        self.forget(worker)
        self.scheduler.worker_lost(worker)
        self.settle()

    @rule(worker=st.sampled_from(["w0", "w1"]), data=st.data())
    def leave(self, worker: str, data: st.DataObject) -> None:
        """In order; of what it plays, some is not handed in."""
        self.leaving = worker
        self.workers.discard(worker)
        self.scheduler.worker_leaving(worker)
        mine = sorted(key for key, entry in self.playing.items() if entry[0] == worker)
        for trajectory_id in sorted(data.draw(st.sets(st.sampled_from(mine)))) if mine else []:
            is_member = self.hand_in(trajectory_id)
            self.settle()
            assert self.ledger.is_pending(trajectory_id) == is_member
        self.forget(worker)
        self.scheduler.worker_left(worker)
        self.settle()
        self.leaving = ""

    def hand_in(self, trajectory_id: str) -> bool:
        """Whether the scheduler takes it: not of a witness."""
        worker, ticket, version = self.playing.pop(trajectory_id)
        log = ticket.log or turn_log(ticket, version=version)
        is_taken = self.scheduler.handed_in(log, worker)
        assert is_taken == (trajectory_id not in self.witnesses)
        if is_taken:
            self.logs[trajectory_id] = log
        return is_taken

    def forget(self, worker: str) -> None:
        self.playing = {key: entry for key, entry in self.playing.items() if entry[0] != worker}

    @rule()
    def confirm(self) -> None:
        self.scheduler.generation_confirmed(self.scheduler.trainer_version)
        self.settle()

    @precondition(lambda self: self.playing)
    @rule(data=st.data(), fails=st.booleans())
    def finish(self, data: st.DataObject, fails: bool) -> None:
        trajectory_id = data.draw(st.sampled_from(sorted(self.playing)))
        self.come_back(trajectory_id, failure="environment raised" if fails else "")

    def come_back(self, trajectory_id: str, failure: str = "") -> None:
        _, ticket, version = self.playing.pop(trajectory_id)
        is_taken = self.scheduler.finished(trajectory(ticket, version=version, failure=failure))
        assert is_taken == (trajectory_id not in self.witnesses)
        self.settle()
        assert is_taken == (trajectory_id in self.returned)

    @precondition(lambda self: self.playing)
    @rule()
    def finish_all(self) -> None:
        for trajectory_id in sorted(self.playing):
            if trajectory_id in self.playing:
                self.come_back(trajectory_id)

    @rule()
    def train(self) -> None:
        batch = self.scheduler.form_batch()
        self.settle()
        if batch is None:
            return
        version = self.scheduler.trainer_version
        assert dict(Counter(group.task for group in batch)) == {
            task: count for task, count in self.config.task_mix().of_batch(version).items() if count
        }
        for group in batch:
            assert len(group.finished) == group.size
            assert all(not member.failure and member.task == group.task for member in group.finished)
            assert all(
                version - member.start_version <= self.config.rollout.schedule.alpha for member in group.finished
            )
            ids = {member.trajectory_id for member in group.finished}
            assert not ids & self.trained_ids, "trained twice"
            assert not ids & self.ended.keys(), "trained although it had ended"
            self.trained_ids |= ids
        self.batches.append(members_of(batch))
        self.scheduler.trained(batch)
        self.settle()

    @rule()
    def save(self) -> None:
        self.checkpoint = ControllerState(
            step=self.scheduler.trainer_version, cursors=self.scheduler.cursors(), model=IDENTITY
        )

    @rule(in_order=st.booleans())
    def resume(self, in_order: bool) -> None:
        """The attempt ends, in order or killed, and the next goes on from the checkpoint and the journal."""
        handed_in: set[str] = set()
        if in_order:
            self.scheduler.close()
            handed_in = {trajectory_id for trajectory_id in sorted(self.playing) if self.hand_in(trajectory_id)}
            self.lose("w0")
            self.save()
        played = set(self.playing) | handed_in
        self.playing, self.workers = {}, {"w0"}
        recovery = recover(list(self.journal), self.checkpoint, self.config)
        assert [members_of(batch) for batch in recovery.batches] == self.batches[self.checkpoint.step :]
        assert handed_in <= recovery.logs.keys()
        self.scheduler, self.ledger = RolloutScheduler(self.config, recovery), recovery.ledger
        for batch in recovery.batches:
            self.scheduler.trained(batch)
        self.scheduler.worker_joined("w0", self.capacity)
        self.settle()
        assert not self.playing, "handed out before it was admitted"
        self.scheduler.generation_confirmed(self.scheduler.trainer_version)
        self.scheduler.admit()
        self.settle()
        assert {one for one in played if self.ledger.is_pending(one)} <= self.running(), "a running one was forgotten"

    def running(self) -> set[str]:
        return {record.trajectory_id for record in self.journal if isinstance(record, Dispatched)} - (
            self.returned | self.ended.keys()
        )

    @invariant()
    def books_balance(self) -> None:
        balance = self.ledger.balance()
        assert balance.dispatched == balance.pending + sum(balance.outcomes.values())
        assert sum(balance.outcomes.values()) == len(self.ended)
        assert balance.outcomes.get("trained", 0) == len(self.trained_ids)

    @invariant()
    def open_and_buffered_groups_are_bounded(self) -> None:
        mix, version = self.config.task_mix(), self.scheduler.trainer_version
        before, until = mix.until(version), mix.until(version + 1 + self.config.rollout.schedule.alpha)
        for task in self.config.tasks:
            num_groups = self.scheduler.num_open(task) + self.scheduler.buffer.count(task)
            assert num_groups <= until[task] - before[task]

    @invariant()
    def a_group_settles_before_it_is_published(self) -> None:
        for group in self.scheduler.buffer.groups():
            kept = {member.trajectory_id for member in group.finished}
            assert len(kept) == group.size
            assert self.members[group.group_id] == kept | (self.members[group.group_id] & self.ended.keys())
            assert not group.running

    @invariant()
    def no_slot_is_idle_while_the_bound_admits(self) -> None:
        generation = self.scheduler.generation_version
        if generation < 0 or len(self.playing) >= self.capacity * len(self.workers):
            return
        assert not self.running() - self.playing.keys()
        mix, admitted = self.config.task_mix(), generation + 1 + self.config.rollout.schedule.alpha
        used = mix.until(self.scheduler.trainer_version)
        for task, most in mix.until(min(admitted, self.config.run.steps)).items():
            assert used[task] + self.scheduler.num_open(task) + self.scheduler.buffer.count(task) >= most

    @invariant()
    def no_worker_is_overfull(self) -> None:
        for worker in ("w0", "w1"):
            assert sum(1 for entry in self.playing.values() if entry[0] == worker) <= self.capacity


TestSchedulerRules = SchedulerRules.TestCase


def test_a_full_buffer_does_not_keep_the_next_batch_from_what_it_lacks():
    config = run_config(tasks={"a": {}, "b": {}}, groups_per_step=4, max_refills=0, buffer_mb=1)
    scheduler, _, tickets = started(config)
    megabyte = np.zeros(1 << 18, np.int32)
    for ticket in tickets:
        if ticket.task == "a":
            scheduler.finished(trajectory(ticket, reward=1.0, token_ids=megabyte))
    scheduler.take_orders()
    for ticket in tickets:
        if ticket.task == "b":
            scheduler.finished(trajectory(ticket, failure="environment died"))
    again = {ticket.group_id for ticket in tickets_of(scheduler)}
    assert len(again) == 2, "what the next batch needs of b, and nothing beyond it"
    assert {group_id[0] for group_id in again} == {"b"}


def test_a_member_that_fails_before_the_first_version_is_confirmed_is_filled_again_with_that_version():
    config = run_config()
    _, _, tickets = started(config)
    recovery = recover(
        [
            GroupOpened("a-0", "a", 0, tickets[0].seed, 0),
            Dispatched("a-0.0", "a-0", 0, 0),
            Dispatched("a-0.1", "a-0", 1, 0),
            Finished(trajectory(tickets[0])),
            Finished(trajectory(tickets[1], failure="environment died")),
        ],
        ControllerState(step=0, cursors={}, model=IDENTITY),
        config,
    )
    resumed = RolloutScheduler(config, recovery)
    resumed.worker_joined("w", 64)
    resumed.generation_confirmed(0)
    resumed.admit()
    refill = next(ticket for ticket in tickets_of(resumed) if ticket.group_id == "a-0")
    assert refill.admitted_version == 0
    resumed.finished(trajectory(refill))
    assert resumed.buffer.count("a") == 1
