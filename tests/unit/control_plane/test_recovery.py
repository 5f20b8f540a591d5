"""What an attempt takes over from the one before; any order of events is in test_rollout_scheduler.py."""

import random
from typing import Any

import numpy as np
import pytest

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.journal import AttemptStarted, Ended, Finished, GivenUp, Published, Record
from rollart_hpc.control_plane.recovery import JOURNAL_LOST, Recovery, recover, unreturned
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.control_plane.task_cursor import Reason, TaskCursor
from rollart_hpc.control_plane.task_rollout import TaskBrokenError
from rollart_hpc.errors import CheckpointError
from rollart_hpc.types import Outcome, Ticket
from tests.builders import IDENTITY, run_config, trajectory, turn_log


class Attempt:
    """A scheduler with one worker, whose records are kept."""

    def __init__(self, config: RunConfig, recovery: Recovery) -> None:
        self.scheduler, self.ledger = RolloutScheduler(config, recovery), recovery.ledger
        self.records: list[Record] = [AttemptStarted(1, recovery.step), *recovery.lost]
        self.tickets: dict[str, Ticket] = {}
        for batch in recovery.batches:
            self.scheduler.trained(batch)
        self.scheduler.worker_joined("w", 64)
        self.scheduler.generation_confirmed(self.scheduler.trainer_version)
        self.scheduler.admit()
        self.take()

    def take(self) -> None:
        orders = self.scheduler.take_orders()
        self.records += orders.records
        for ticket in orders.tickets.get("w", []):
            self.tickets[ticket.trajectory_id] = ticket

    def finish(self, *trajectory_ids: str, **changes: Any) -> None:
        for trajectory_id in trajectory_ids:
            ticket = self.tickets.pop(trajectory_id)
            self.scheduler.finished(trajectory(ticket, version=ticket.admitted_version, **changes))
            self.take()

    def train(self, *, finished: bool = True) -> list[Group]:
        batch = self.scheduler.form_batch()
        assert batch is not None
        self.take()
        if finished:
            self.scheduler.trained(batch)
            self.scheduler.generation_confirmed(self.scheduler.trainer_version)
            self.take()
        return batch


def new_run(config: RunConfig) -> Attempt:
    return Attempt(config, recover([], at(0), config))


def at(step: int, cursors: dict[str, TaskCursor] | None = None) -> ControllerState:
    return ControllerState(step=step, cursors=cursors or {}, model=IDENTITY)


def overtake(attempt: Attempt) -> None:
    """Trains two batches in which the indices 0 and 1 are not."""
    for _ in range(2):
        fast = [one for one in attempt.tickets if one.split(".")[0] not in ("a-0", "a-1", "a-0~1", "a-1~1")]
        attempt.finish(*fast[:4])
        attempt.train()


def ids(batch: list[Group]) -> list[str]:
    return [member.trajectory_id for group in batch for member in group.finished]


def test_what_was_running_is_sent_again_under_its_id_and_what_came_back_is_not():
    config = run_config(alpha=0)
    first = new_run(config)
    first.finish("a-0.1")
    second = Attempt(config, recover(first.records, at(0), config))
    assert sorted(second.tickets) == ["a-0.0", "a-1.0", "a-1.1"]
    second.finish("a-0.0", "a-1.0", "a-1.1")
    assert ids(second.train()) == ["a-0.0", "a-0.1", "a-1.0", "a-1.1"]


def test_a_batch_has_the_order_in_which_it_was_asked_for_whatever_came_first():
    config = run_config(alpha=0, tasks={"b": {}, "a": {}})
    orders: list[list[str]] = []
    for seed in range(6):
        attempt = new_run(config)
        arrival = sorted(attempt.tickets)
        random.Random(seed).shuffle(arrival)
        attempt.finish(*arrival)
        orders.append(ids(attempt.train()))
    assert orders == [["b-0.0", "b-0.1", "a-0.0", "a-0.1"]] * 6


def test_batches_since_the_checkpoint_come_again_as_they_were_and_are_booked_once():
    config = run_config(alpha=0)
    first = new_run(config)
    batches: list[list[str]] = []
    for step in range(4):
        first.finish(*sorted(first.tickets, reverse=True))
        batches.append(ids(first.train(finished=step < 3)))
    recovery = recover(first.records, at(1), config)
    assert [ids(batch) for batch in recovery.batches] == batches[1:]
    assert all(len(member.token_ids) for batch in recovery.batches for group in batch for member in group.finished)
    second = Attempt(config, recovery)
    assert second.scheduler.trainer_version == 4
    trained = [one.trajectory_id for one in second.records if isinstance(one, Ended)]
    assert trained == batches[3]
    assert second.ledger.balance().outcomes == {"trained": 16}


@pytest.mark.parametrize("alpha", [0, 1])
def test_after_steps_that_are_trained_again_nothing_that_was_running_is_stale(alpha: int):
    config = run_config(alpha=alpha)
    first = new_run(config)
    for _ in range(3):
        first.finish(*sorted(first.tickets)[:4])
        first.train()
    running = set(first.tickets)
    second = Attempt(config, recover(first.records, at(0), config))
    assert set(second.tickets) == running
    assert not [one for one in second.records if isinstance(one, GivenUp)]


def test_a_handed_in_trajectory_takes_its_turns_along_and_the_bound_goes_by_its_oldest_token():
    config = run_config(alpha=1)
    first = new_run(config)
    first.scheduler.close()
    logs = {trajectory_id: turn_log(ticket, version=0) for trajectory_id, ticket in first.tickets.items()}
    for log in logs.values():
        assert first.scheduler.handed_in(log, "w")
    first.take()
    second = Attempt(config, recover(first.records, at(0), config))
    assert {trajectory_id: ticket.log for trajectory_id, ticket in second.tickets.items()} == logs
    assert {ticket.admitted_version for ticket in second.tickets.values()} == {0}
    third = Attempt(config, recover(first.records + second.records, at(0), config))
    assert {trajectory_id: ticket.log for trajectory_id, ticket in third.tickets.items()} == logs


def test_a_failure_that_was_saved_without_its_consequence_is_filled_again():
    config = run_config(alpha=0)
    first = new_run(config)
    saved = Finished(trajectory(first.tickets["a-0.0"], failure="environment died"))
    second = Attempt(config, recover([*first.records, saved], at(0), config))
    assert second.ledger.outcome("a-0.0") is Outcome.FAILED
    assert sorted(second.tickets) == ["a-0.1", "a-0.2", "a-1.0", "a-1.1"]
    assert unreturned([*first.records, saved]) == {"a-0.1", "a-1.0", "a-1.1"}


def test_a_stale_seed_s_second_group_has_a_name_of_its_own_in_every_attempt():
    config = run_config(alpha=1)
    first = new_run(config)
    overtake(first)
    assert {"a-0~1.0", "a-0~1.1", "a-1~1.0"} <= set(first.tickets)
    second = Attempt(config, recover(first.records, at(2), config))
    assert {"a-0~1.0", "a-0~1.1", "a-1~1.0"} <= set(second.tickets)
    overtake(second)
    assert {"a-0~2.0", "a-1~2.1"} <= set(second.tickets)


def test_poisoned_seeds_stay_so():
    config = run_config(alpha=0, max_refills=0, tasks={"a": {"num_seeds": 3}})
    first = new_run(config)
    poisoned = first.tickets["a-0.0"].seed
    first.finish("a-0.0", failure="environment raised")
    first.finish(*[one for one in first.tickets if first.tickets[one].seed != poisoned][:4])
    first.train()
    second = Attempt(config, recover(first.records, at(0), config))
    for _ in range(5):
        assert poisoned not in {ticket.seed for ticket in second.tickets.values()}
        second.finish(*sorted(second.tickets))
        second.train()


def test_seeds_of_a_task_that_gave_nothing_at_all_get_another_try():
    config = run_config(alpha=0, max_refills=0, tasks={"a": {"num_seeds": 2}})
    broken = new_run(config)
    with pytest.raises(TaskBrokenError, match="all of its 2 seeds are poisoned"):
        while True:
            broken.finish(min(broken.tickets), failure="environment raised")
            broken.tickets = {one: ticket for one, ticket in broken.tickets.items() if broken.ledger.is_pending(one)}
    repaired = Attempt(config, recover(broken.records, at(0), config))
    assert repaired.scheduler.cursors()["a"].poisoned == {}
    for _ in range(3):
        repaired.finish(*sorted(repaired.tickets))
        repaired.train()


def test_what_was_half_played_is_not_overtaken_behind_a_resume():
    config = run_config(alpha=1)
    first = new_run(config)
    first.finish(*sorted(first.tickets)[:4])
    first.train()
    half = [one for one in sorted(first.tickets) if one.startswith(("a-2.", "a-3."))]
    first.finish(half[0], half[2])
    second = Attempt(config, recover(first.records, at(1), config))
    new = [one for one in sorted(second.tickets) if one.startswith(("a-4.", "a-5."))]
    second.finish(*new)
    assert second.scheduler.form_batch() is None, "the last batch that may have the older groups does without them"
    second.finish(half[1], half[3])
    assert ids(second.train()) == ["a-2.0", "a-2.1", "a-3.0", "a-3.1"]
    assert "stale" not in second.ledger.balance().outcomes


def test_of_complete_groups_those_go_first_that_will_be_stale_first():
    config = run_config(alpha=1)
    attempt = new_run(config)
    attempt.finish(*sorted(attempt.tickets)[:4])
    attempt.train()
    attempt.finish(*sorted(attempt.tickets, reverse=True))
    assert {one.rpartition(".")[0] for one in ids(attempt.train())} == {"a-2", "a-3"}


def test_without_a_journal_the_checkpoint_knows_which_seeds_are_next():
    config = run_config(alpha=0)
    state = at(5, {"a": TaskCursor(next_index=12, again=[7], poisoned={99: Reason()})})
    attempt = Attempt(config, recover([], state, config))
    assert {ticket.group_id for ticket in attempt.tickets.values()} == {"a-7~1", "a-12"}
    assert attempt.scheduler.cursors()["a"].poisoned == {99: Reason()}


def test_ends_that_were_torn_off_behind_the_checkpoint_s_last_batch_are_made_good():
    config = run_config(alpha=0)
    first = new_run(config)
    first.finish(*sorted(first.tickets))
    first.train()
    torn = [one for one in first.records if not isinstance(one, Ended)]
    recovery = recover(torn, at(1), config)
    assert [one for one in recovery.lost if isinstance(one, Ended)] == [
        Ended(trajectory_id, Outcome.TRAINED) for trajectory_id in ("a-0.0", "a-0.1", "a-1.0", "a-1.1")
    ]
    assert recovery.ledger.balance().outcomes == {"trained": 4}


def test_a_journal_that_ends_before_the_checkpoint_gives_up_what_it_knows_too_little_about(
    caplog: pytest.LogCaptureFixture,
):
    config = run_config(alpha=1)
    first = new_run(config)
    first.finish(*sorted(first.tickets)[:4])
    known = list(first.records)
    first.train()
    state = at(1, first.scheduler.cursors())
    second = Attempt(config, recover(known, state, config))
    assert "the journal ends at the batch of step 0, the checkpoint is of step 1" in caplog.text
    assert second.ledger.balance().causes == {f"failed: {JOURNAL_LOST}": 8}
    assert {ticket.group_id for ticket in second.tickets.values()} == {"a-2~1", "a-3~1", "a-4~1", "a-5~1"}
    third = Attempt(config, recover(known + second.records, at(1, second.scheduler.cursors()), config))
    assert set(third.tickets) == set(second.tickets)


def test_a_checkpoint_whose_later_batches_are_not_kept_is_refused():
    config = run_config(alpha=0)
    first = new_run(config)
    first.finish(*sorted(first.tickets))
    first.train()
    nothing = np.zeros(0, np.int32)
    compacted = [
        Finished(trajectory(Ticket(trajectory_id=one.trajectory.trajectory_id, group_id=one.trajectory.group_id,
                                   task="a", seed=0, admitted_version=0), token_ids=nothing))
        if isinstance(one, Finished) else one
        for one in first.records
    ]  # fmt: skip
    with pytest.raises(CheckpointError, match=r"step 0 cannot be gone on from: .* the batch of step 0 any more"):
        recover(compacted, at(0), config)
    assert recover(compacted, at(1), config).batches == []


def test_a_larger_group_gets_the_members_that_it_lacks():
    first = new_run(run_config(alpha=0))
    first.finish("a-0.0", "a-0.1")
    larger = run_config(alpha=0, tasks={"a": {"group_size": 3}})
    second = Attempt(larger, recover(first.records, at(0), larger))
    assert sorted(second.tickets) == ["a-0.2", "a-1.0", "a-1.1", "a-1.2"]


def test_the_first_digest_of_a_version_is_the_one_to_compare_with():
    config = run_config()
    recovery = recover([Published(0, "x"), Published(1, "y"), Published(1, "z")], at(0), config)
    assert recovery.digests == {0: "x", 1: "y"}
