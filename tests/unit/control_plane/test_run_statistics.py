"""Where tokens were generated: per step and in sum."""

from typing import Any

from rollart_hpc.config.schema import AlgorithmSection
from rollart_hpc.control_plane.batch import form_batch
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.run_statistics import RunStatistics
from rollart_hpc.types import Ticket, TrainStats, Trajectory
from tests.builders import trajectory

STATS = TrainStats(
    step=1,
    loss=0.0,
    grad_norm=1.0,
    learning_rate=1e-3,
    clip_fraction=0.0,
    ratio_mean=1.0,
    entropy=1.0,
    num_tokens=4,
    gap_sum=0.0,
    gap_max=0.0,
    gap_count=1,
)


def played(task: str, number: int = 0, **changes: Any) -> Trajectory:
    ticket = Ticket(trajectory_id=f"g.{number}", group_id="g", task=task, seed=0, admitted_version=0)
    return trajectory(ticket, **changes)


def test_the_tokens_of_each_class_are_summed_by_task():
    statistics = RunStatistics(["a", "b"])
    statistics.finished(played("a", tokens_by_hardware={"H800": 2}))
    statistics.finished(played("a", tokens_by_hardware={"H800": 1, "H20": 1}))
    statistics.finished(played("a", tokens_by_hardware={"H20": 9}, failure="environment died"))
    statistics.finished(played("b", tokens_by_hardware={"H20": 2}))
    tasks = statistics.as_summary()["tasks"]
    assert {name: task["tokens_by_hardware"] for name, task in tasks.items()} == {
        "a": {"H800": 3, "H20": 1},
        "b": {"H20": 2},
    }


def test_a_step_s_record_has_those_of_its_batch():
    group = Group(group_id="g", task="a", index=0, seed=0, size=2, opened_version=0)
    group.finished += [
        played("a", number, reward=float(number), tokens_by_hardware={"H800": 1, hardware: 1})
        for number, hardware in enumerate(("H20", "cpu"))
    ]
    statistics = RunStatistics(["a", "b"])
    batch = form_batch([group], step=0, algorithm=AlgorithmSection(), data_parallel=1)
    record = statistics.trained([group], batch, STATS)
    assert record["tasks"]["a"]["tokens_by_hardware"] == {"H800": 2, "H20": 1, "cpu": 1}
    assert record["tasks"]["b"]["tokens_by_hardware"] == {}
