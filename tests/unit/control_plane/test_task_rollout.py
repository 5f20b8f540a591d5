"""What of a task is measured, and what is said of its lengths."""

import pytest

from rollart_hpc.control_plane import deadlines
from rollart_hpc.control_plane.recovery import Recovery
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.control_plane.task_cursor import TaskCursor
from rollart_hpc.control_plane.task_rollout import TaskRollout
from rollart_hpc.types import Ticket
from tests.builders import run_config, trajectory

TICKET = Ticket(trajectory_id="g.0", group_id="g", task="a", seed=0, admitted_version=0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline is measured from one observation on: half of them may be later than what it goes by."""
    monkeypatch.setattr(deadlines, "_LATE", 2)


@pytest.mark.parametrize(
    ("duration_s", "is_whole", "failure", "deadlines_s"),
    [
        pytest.param(5.0, True, "", (10.0, 6.0), id="whole"),
        pytest.param(5.0, False, "", (None, None), id="others of its group are cut"),
        pytest.param(None, True, "", (None, None), id="went on from earlier turns"),
        pytest.param(5.0, True, "environment died", (None, None), id="failed"),
    ],
)
def test_deadlines_are_measured_on_whole_and_scored_trajectories(
    duration_s: float | None, is_whole: bool, failure: str, deadlines_s: tuple[float | None, float | None]
):
    task = TaskRollout("a", run_config(deadlines="measured"), TaskCursor())
    task.returned(trajectory(TICKET, slowest_turn_s=3.0, failure=failure), duration_s, is_whole=is_whole)
    assert (task.timeout_s, task.turn_timeout_s) == deadlines_s


def test_fixed_deadlines_stay_as_they_are_configured():
    task = TaskRollout("a", run_config(), TaskCursor())
    task.returned(trajectory(TICKET, slowest_turn_s=3.0), 5.0, is_whole=True)
    assert (task.timeout_s, task.turn_timeout_s) == (None, None)


def test_what_is_overtaken_counts_as_long_as_it_lasted():
    now = 0.0
    scheduler = RolloutScheduler(run_config(alpha=0, deadlines="measured"), Recovery(step=0), clock=lambda: now)
    scheduler.admit()
    scheduler.worker_joined("w", 8)
    scheduler.generation_confirmed(0)
    (tickets,) = scheduler.take_orders().tickets.values()
    now = 1.0
    for ticket in tickets[2:]:
        scheduler.finished(trajectory(ticket))
    now = 50.0
    scheduler.trainer_version = 1
    assert scheduler.form_batch() is None
    assert scheduler.tasks["a"].timeout_s == 100.0


def test_the_length_bias_is_that_of_what_is_trained_against_all_that_came_back():
    scheduler = RolloutScheduler(run_config(alpha=0, groups_per_step=1), Recovery(step=0))
    scheduler.admit()
    scheduler.worker_joined("w", 8)
    scheduler.generation_confirmed(0)
    (tickets,) = scheduler.take_orders().tickets.values()
    for ticket in tickets:
        scheduler.finished(trajectory(ticket, num_turns=1))
    scheduler.tasks["a"].returned(trajectory(TICKET, num_turns=7), None, is_whole=False)
    batch = scheduler.form_batch()
    assert batch is not None
    scheduler.trained(batch)
    assert scheduler.tasks["a"].as_record()["length_bias"] == {"turns": 1 / 3, "tokens": 1.0}
