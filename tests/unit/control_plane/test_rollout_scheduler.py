import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollart_hpc.control_plane.journal import Ended, Finished
from rollart_hpc.control_plane.ledger import Ledger
from rollart_hpc.control_plane.rollout_scheduler import WORKER_LOST, RolloutScheduler, TaskBrokenError
from rollart_hpc.types import Outcome, Ticket
from tests.builders import run_config, trajectory


def scheduler_of(config, step: int = 0, cursors=None) -> tuple[RolloutScheduler, Ledger]:
    ledger = Ledger()
    return RolloutScheduler(config, ledger, step=step, cursors=cursors or {}), ledger


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


@settings(max_examples=120, stateful_step_count=60, deadline=None)
class SchedulerRules(RuleBasedStateMachine):
    """Any order of events keeps the bound, the books and the groups whole."""

    @initialize(alpha=st.integers(0, 3), redundancy=st.integers(0, 2), capacity=st.integers(1, 12))
    def start(self, alpha: int, redundancy: int, capacity: int) -> None:
        self.config = run_config(
            alpha=alpha,
            groups_per_step=3,
            max_refills=100,
            tasks={"a": {"redundancy": redundancy}, "b": {"weight": 2.0, "group_size": 3}},
        )
        self.capacity = capacity
        self.scheduler, self.ledger = scheduler_of(self.config)
        self.playing: dict[str, tuple[str, Ticket, int]] = {}
        self.trained_ids: set[str] = set()
        self.ended: dict[str, Outcome] = {}
        self.join("w0")

    def settle(self) -> None:
        orders = self.scheduler.take_orders()
        for worker, tickets in orders.tickets.items():
            for ticket in tickets:
                self.playing[ticket.trajectory_id] = (worker, ticket, self.scheduler.generation_version)
        for trajectory_ids in orders.aborts.values():
            for trajectory_id in trajectory_ids:
                self.playing.pop(trajectory_id, None)
        for record in orders.records:
            if isinstance(record, Ended):
                assert record.trajectory_id not in self.ended, "ended twice"
                self.ended[record.trajectory_id] = record.outcome
            elif isinstance(record, Finished):
                assert record.trajectory.trajectory_id not in self.trained_ids

    @rule(worker=st.sampled_from(["w0", "w1"]))
    def join(self, worker: str) -> None:
        self.scheduler.worker_joined(worker, self.capacity)
        self.forget(worker)
        self.settle()

    @rule(worker=st.sampled_from(["w0", "w1"]))
    def lose(self, worker: str) -> None:
        self.scheduler.worker_lost(worker)
        self.forget(worker)
        self.settle()

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
        _, ticket, version = self.playing.pop(trajectory_id)
        self.scheduler.finished(trajectory(ticket, version=version, failure="environment raised" if fails else ""))
        self.settle()

    @precondition(lambda self: self.playing)
    @rule()
    def finish_all(self) -> None:
        for trajectory_id in sorted(self.playing):
            if trajectory_id in self.playing:
                _, ticket, version = self.playing.pop(trajectory_id)
                self.scheduler.finished(trajectory(ticket, version=version))
                self.settle()

    @rule()
    def train(self) -> None:
        batch = self.scheduler.form_batch()
        self.settle()
        if batch is None:
            return
        version = self.scheduler.trainer_version
        assert [group.task for group in batch] == ["a"] * 1 + ["b"] * 2
        for group in batch:
            assert len(group.finished) == group.size
            assert all(not member.failure and member.task == group.task for member in group.finished)
            assert all(version - member.start_version <= self.config.rollout.alpha for member in group.finished)
            ids = {member.trajectory_id for member in group.finished}
            assert not ids & self.trained_ids, "trained twice"
            self.trained_ids |= ids
        self.scheduler.trained(batch)
        self.settle()

    @invariant()
    def books_balance(self) -> None:
        balance = self.ledger.balance()
        assert balance.dispatched == balance.pending + sum(balance.outcomes.values())
        assert sum(balance.outcomes.values()) == len(self.ended)
        assert balance.outcomes.get("trained", 0) == len(self.trained_ids)

    @invariant()
    def open_and_buffered_groups_are_bounded(self) -> None:
        for task, quota in self.scheduler.quota.items():
            assert (
                self.scheduler.num_open(task) + self.scheduler.buffer.count(task)
                <= (1 + self.config.rollout.alpha) * quota
            )

    @invariant()
    def no_worker_is_overfull(self) -> None:
        for worker in ("w0", "w1"):
            assert sum(1 for entry in self.playing.values() if entry[0] == worker) <= self.capacity


TestSchedulerRules = SchedulerRules.TestCase
