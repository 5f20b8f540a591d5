"""Redundant members that play on: they keep their slot, are counted, and reach nothing else."""

import pytest

from rollart_hpc.control_plane import group as group_module
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.recovery import Recovery
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.types import Outcome, Ticket
from tests.builders import run_config, trajectory, turn_log


class Play:
    """One group of two with one redundant member, complete; the third member is a witness."""

    def __init__(self) -> None:
        recovery = Recovery(step=0)
        self.now, self.ledger = 0.0, recovery.ledger
        config = run_config(alpha=0, groups_per_step=1, tasks={"a": {"redundancy": 1}})
        self.scheduler = RolloutScheduler(config, recovery, clock=lambda: self.now)
        self.scheduler.admit()
        self.scheduler.worker_joined("w", 3)
        self.scheduler.generation_confirmed(0)
        *self.members, self.witness = self.tickets()
        self.now = 2.0
        for ticket in self.members:
            self.scheduler.finished(trajectory(ticket))

    def tickets(self) -> list[Ticket]:
        return [ticket for tickets in self.scheduler.take_orders().tickets.values() for ticket in tickets]

    def open_next(self) -> list[Ticket]:
        """Trains, so that the next group is admitted; returns what goes out."""
        batch = self.scheduler.form_batch()
        assert batch is not None
        self.scheduler.trained(batch)
        self.scheduler.generation_confirmed(1)
        return self.tickets()


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(group_module, "_WITNESSED", 1)
    return Play()


def test_a_witness_ends_in_the_books_and_is_not_aborted(play: Play):
    assert play.ledger.outcome(play.witness.trajectory_id) is Outcome.REDUNDANT
    assert play.scheduler.take_orders().aborts == {}


def test_a_witness_keeps_its_slot_until_it_comes_back(play: Play):
    assert len(play.open_next()) == 2
    play.scheduler.finished(trajectory(play.witness))
    assert len(play.tickets()) == 1


def test_a_witness_is_counted_and_reaches_nothing_else(play: Play):
    play.scheduler.take_orders()
    play.now = 9.0
    assert not play.scheduler.finished(trajectory(play.witness, num_turns=5, reward=1.0))
    assert not play.scheduler.finished(trajectory(play.witness, num_turns=50))
    assert play.scheduler.take_orders().records == []
    play.open_next()
    assert play.scheduler.tasks["a"].as_summary()["redundancy"] == {
        "members": 1,
        "cut": 1,
        "witnesses": 1,
        "trained": {"turns": 1.0, "tokens": 2.0, "success": 0.0, "duration_s": 2.0},
        "cut_estimate": {"turns": 5.0, "tokens": 2.0, "success": 1.0, "duration_s": 9.0},
    }


def test_a_witness_that_fails_is_no_estimate_and_is_not_played_again(play: Play):
    play.scheduler.take_orders()
    play.scheduler.finished(trajectory(play.witness, failure="environment died"))
    assert play.tickets() == []
    assert play.scheduler.tasks["a"].as_summary()["redundancy"]["witnesses"] == 0


@pytest.mark.parametrize("end", ["lost", "left", "stopped"])
def test_a_witness_is_forgotten_with_its_worker_and_at_a_stop(play: Play, end: str):
    match end:
        case "lost":
            play.scheduler.worker_lost("w")
        case "left":
            play.scheduler.worker_leaving("w")
            assert not play.scheduler.handed_in(turn_log(play.witness), "w")
            play.scheduler.worker_left("w")
        case _:
            play.scheduler.close()
    play.scheduler.finished(trajectory(play.witness))
    assert play.scheduler.tasks["a"].as_summary()["redundancy"]["witnesses"] == 0
    assert play.ledger.balance().outcomes == {"redundant": 1}


def test_about_one_group_in_sixteen_has_witnesses_and_the_same_in_every_attempt():
    groups = [Group(group_id=f"a-{n}", task="a", index=n, seed=0, size=2, opened_version=0) for n in range(1600)]
    assert 60 < sum(group.has_witnesses for group in groups) < 140
    assert [group.index for group in groups[:60] if group.has_witnesses] == [3, 35, 36, 51]
