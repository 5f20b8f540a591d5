"""What slow, hanging and hopeless environments cost, in virtual time."""

import logging
import random
from collections import Counter
from itertools import pairwise

import pytest

from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.journal import Record
from rollart_hpc.control_plane.recovery import Recovery, recover
from rollart_hpc.control_plane.rollout_report import add_rollout_record, add_rollout_summary
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.types import Ticket
from tests.builders import IDENTITY, run_config, trajectory
from tests.unit.control_plane.virtual_rollout import VirtualRollout

DEADLINE_S = 30.0
HANGS = (DEADLINE_S, "environment step_timeout")


def first_of_its_group_hangs(ticket: Ticket) -> tuple[float, str]:
    return HANGS if ticket.trajectory_id.endswith(".0") else (1.0, "")


@pytest.mark.parametrize(("redundancy", "wait_s"), [(0, DEADLINE_S + 1), (1, 1.0)], ids=["alone", "with redundancy"])
def test_a_member_that_hangs_in_every_group_costs_it_one_deadline_at_most(redundancy: int, wait_s: float):
    config = run_config(alpha=1, tasks={"a": {"group_size": 4, "redundancy": redundancy}})
    rollout = VirtualRollout(config, first_of_its_group_hangs)
    rollout.until(6)
    times = [0.0, *(time for time, _ in rollout.batches)]
    assert max(after - before for before, after in pairwise(times)) <= wait_s
    for _, batch in rollout.batches:
        for group in batch:
            others = [group.durations_s[one] for one in group.durations_s if one.rpartition(".")[2] != "0"]
            assert others == [1.0] * len(others)


def test_a_fast_and_a_slow_task_are_trained_by_their_weights_at_the_pace_of_the_slow_one():
    def play(ticket: Ticket) -> tuple[float, str]:
        return (10.0 if ticket.task == "slow" else 1.0), ""

    config = run_config(alpha=1, groups_per_step=8, tasks={"slow": {}, "fast": {}})
    rollout = VirtualRollout(config, play)
    rollout.until(20)
    trained = Counter(group.task for _, batch in rollout.batches for group in batch)
    assert trained == {"slow": 80, "fast": 80}
    assert rollout.now <= 20 * 10.0 / 2 / 0.9
    record: dict[str, object] = {}
    add_rollout_record(record, rollout.scheduler.tasks, rollout.scheduler.waited_for)
    tasks = record["tasks"]
    assert isinstance(tasks, dict)
    assert record["waited_for"] == "slow"
    assert {task["share"] for task in tasks.values()} == {0.5}
    assert tasks["slow"]["buffer_wait_s"] < 1.0 < tasks["fast"]["buffer_wait_s"]


def test_redundancy_follows_the_tail_within_its_budget_and_is_measured_where_nobody_is_cut():
    tail = random.Random(1)
    auto = {"a": {"group_size": 8, "redundancy": "auto"}}
    config = run_config(alpha=1, groups_per_step=8, trajectories_per_worker=64, tasks=auto)
    rollout = VirtualRollout(config, lambda _: (tail.lognormvariate(0.0, 1.5), ""))
    rollout.until(60)
    first, last = (Counter(one.group_id for one in some) for some in (rollout.tickets[:100], rollout.tickets[-100:]))
    assert max(first.values()) == 8
    assert max(last.values()) == 12
    redundancy = rollout.scheduler.tasks["a"].as_summary()["redundancy"]
    assert redundancy["members"] == 4
    assert redundancy["cut_estimate"]["duration_s"] > 2 * redundancy["trained"]["duration_s"]


def test_measured_deadlines_go_out_with_the_tickets_except_where_they_are_measured():
    config = run_config(alpha=0, groups_per_step=64, deadlines="measured", tasks={"a": {"group_size": 8}})
    rollout = VirtualRollout(config, lambda _: (3.0, ""))
    rollout.until(1)
    assert {ticket.timeout_s for ticket in rollout.tickets} == {None}
    rollout.until(4)
    newest = rollout.tickets[-512:]
    measured = {ticket.group_id for ticket in newest if ticket.timeout_s == 6.0}
    configured = {ticket.group_id for ticket in newest if ticket.timeout_s is None}
    assert len(measured) > 8 * len(configured) > 0
    assert len(measured) + len(configured) == 64


def test_a_seed_that_never_returns_is_poisoned_named_and_not_played_again_also_after_a_resume(
    caplog: pytest.LogCaptureFixture,
):
    config = run_config(alpha=0, max_refills=2, tasks={"a": {"num_seeds": 4}})
    journal: list[Record] = []

    def play_all(scheduler: RolloutScheduler) -> list[int]:
        """Until nothing runs; returns the seeds that were played."""
        seeds: list[int] = []
        while tickets := take(scheduler):
            for ticket in tickets:
                seeds.append(ticket.seed)
                failure = HANGS[1] if ticket.seed == 2 else ""
                scheduler.finished(
                    trajectory(ticket, version=ticket.admitted_version, failure=failure, failure_detail="no answer")
                )
        return seeds

    def take(scheduler: RolloutScheduler) -> list[Ticket]:
        orders = scheduler.take_orders()
        journal.extend(orders.records)
        return [ticket for tickets in orders.tickets.values() for ticket in tickets]

    def begin(recovery: Recovery) -> RolloutScheduler:
        scheduler = RolloutScheduler(config, recovery)
        for batch in recovery.batches:
            scheduler.trained(batch)
        scheduler.admit()
        scheduler.worker_joined("w", 8)
        return scheduler

    def train(scheduler: RolloutScheduler, num_batches: int) -> list[int]:
        seeds: list[int] = []
        for _ in range(num_batches):
            scheduler.generation_confirmed(scheduler.trainer_version)
            seeds += play_all(scheduler)
            batch = scheduler.form_batch()
            assert batch is not None
            scheduler.trained(batch)
        take(scheduler)
        return seeds

    with caplog.at_level(logging.WARNING):
        scheduler = begin(Recovery(step=0))
        assert 3 <= train(scheduler, 4).count(2) <= 2 * 3
    (line,) = [record.getMessage() for record in caplog.records if "poisoned" in record.getMessage()]
    assert line.startswith("task a: seed 2 is poisoned")
    assert line.endswith("failed 3 times; the last cause is 'environment step_timeout' (no answer)")

    resumed = begin(recover(journal, ControllerState(step=0, cursors={}, model=IDENTITY), config))
    assert 2 not in train(resumed, 6)
    summary: dict[str, object] = {}
    add_rollout_summary(summary, resumed.tasks)
    named = {"seed": 2, "cause": "environment step_timeout", "detail": "no answer", "failures": 3}
    assert summary["poisoned"] == {"a": [named]}
