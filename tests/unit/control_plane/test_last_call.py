from rollart_hpc.control_plane.last_call import LastCall
from rollart_hpc.control_plane.recovery import Recovery
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.types import Ticket
from tests.builders import run_config, trajectory
from tests.unit.control_plane.test_rollout_scheduler import tickets_of


class Play:
    """A scheduler with a clock of the test's own; one group a batch, alpha 1."""

    def __init__(self, **rollout: object) -> None:
        self.now_s = 0.0
        self.scheduler = RolloutScheduler(
            run_config(groups_per_step=1, **rollout), Recovery(step=0, cursors={}), clock=lambda: self.now_s
        )
        self.scheduler.admit()
        self.scheduler.worker_joined("w", 64)
        self.scheduler.generation_confirmed(0)
        self.tickets: dict[str, list[Ticket]] = {}
        self.look()

    def look(self) -> None:
        for ticket in tickets_of(self.scheduler):
            self.tickets.setdefault(ticket.group_id, []).append(ticket)

    def finish(self, group_id: str, version: int) -> None:
        for ticket in self.tickets[group_id]:
            self.scheduler.finished(trajectory(ticket, version=version, reward=1.0))
        self.look()

    def train(self) -> None:
        batch = self.scheduler.form_batch()
        assert batch is not None
        self.scheduler.trained(batch)
        self.scheduler.generation_confirmed(self.scheduler.trainer_version)
        self.look()

    def overtaken(self) -> None:
        """The second group still runs with version 0, at its last batch, and a newer one is complete."""
        self.now_s = 100.0
        self.finish("a-0", version=0)
        self.train()
        self.now_s = 150.0
        self.finish("a-2", version=1)


def test_a_batch_waits_for_a_group_that_would_be_stale_after_it():
    play = Play()
    play.overtaken()
    assert play.scheduler.form_batch() is None
    assert play.scheduler.patience_s == 2.5 * 75 - 150  # usual are (100 + 50) / 2 s, and it has played 150 s
    play.now_s = 160.0
    play.finish("a-1", version=0)
    batch = play.scheduler.form_batch()
    assert batch is not None
    assert [group.group_id for group in batch] == ["a-1"]


def test_it_does_not_wait_longer_than_groups_usually_take():
    play = Play()
    play.overtaken()
    play.now_s = 2.5 * 75
    batch = play.scheduler.form_batch()
    assert batch is not None
    assert [group.group_id for group in batch] == ["a-2"]
    play.scheduler.trained(batch)
    assert "a-1~1" in {ticket.group_id for ticket in tickets_of(play.scheduler)}, "its seed is played again"


def test_nothing_is_waited_for_where_stale_trajectories_are_trained():
    play = Play(mode="areal")
    play.overtaken()
    assert play.scheduler.form_batch() is not None


def test_nobody_is_waited_for_while_nothing_is_known():
    assert LastCall(2.5).patience_s(0.0) == 0.0


def test_a_run_without_last_call_waits_for_nobody_not_even_behind_a_resume():
    play = Play(last_call=0.0)
    play.overtaken()
    assert play.scheduler.form_batch() is not None
    assert LastCall(0.0).patience_s(0.0, is_continued=True) == 0.0


def test_patience_is_over_with_the_batch_that_was_waited_for():
    play = Play()
    play.overtaken()
    play.now_s = 2.5 * 75
    assert play.scheduler.form_batch() is not None
    assert play.scheduler.patience_s is None, "other waits must not look again at once"
