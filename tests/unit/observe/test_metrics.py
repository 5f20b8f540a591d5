from pathlib import Path

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rollart_hpc.observe.assessment import read_summary
from rollart_hpc.observe.metrics import MetricsWriter, flatten, read_metrics, write_summary


def write(directory: Path, *steps: int, **record: object) -> None:
    writer = MetricsWriter(directory, after_step=steps[0] - 1)
    for step in steps:
        writer.write(step, {"loss": step / 2, "tasks": {"lake": {"success": 0.5}}, **record})
    writer.close()


def steps_of(directory: Path) -> list[int]:
    return [record["step"] for record in read_metrics(directory)]


def test_records_come_back_in_order(tmp_path: Path):
    write(tmp_path, 1, 2, note="größer")
    assert read_metrics(tmp_path) == [
        {"step": step, "loss": step / 2, "tasks": {"lake": {"success": 0.5}}, "note": "größer"} for step in (1, 2)
    ]


def test_a_record_can_be_read_while_the_run_goes_on(tmp_path: Path):
    writer = MetricsWriter(tmp_path, after_step=0)
    writer.write(1, {"loss": 1.0})
    assert steps_of(tmp_path) == [1]
    writer.close()


def test_nothing_written_is_nothing_read(tmp_path: Path):
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_costs_its_own_step_only_also_after_a_resume(tmp_path: Path, cut: int):
    write(tmp_path, 1, 2, 3)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert steps_of(tmp_path) in ([1, 2], [1, 2, 3])
    write(tmp_path, 3, 4)
    assert steps_of(tmp_path) == [1, 2, 3, 4]


def test_steps_that_are_trained_again_count_once(tmp_path: Path):
    write(tmp_path, 1, 2, 3, attempt="first")
    write(tmp_path, 2, 3, 4, attempt="second")
    assert [(record["step"], record["attempt"]) for record in read_metrics(tmp_path)] == [
        (1, "first"),
        (2, "second"),
        (3, "second"),
        (4, "second"),
    ]


def test_tensorboard_reads_every_number_of_every_step(tmp_path: Path):
    write(tmp_path, 1, 2, converged=True, note="text")
    write(tmp_path, 3)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(events.Tags()["scalars"]) == ["converged", "loss", "tasks/lake/success"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (2, 1.0), (3, 1.5)]


def test_only_numbers_are_flattened_under_their_path():
    record = {"a": 1, "b": {"c": 2.5, "d": {"e": True}, "f": "text", "g": None}, "h": [1]}
    assert flatten(record) == {"a": 1.0, "b/c": 2.5, "b/d/e": 1.0}


def test_a_summary_that_cannot_be_written_leaves_the_one_before(tmp_path: Path):
    write_summary(tmp_path, {"steps": 1})
    with pytest.raises(TypeError):
        write_summary(tmp_path, {"steps": object()})
    assert read_summary(tmp_path) == {"steps": 1}


def test_a_summary_is_replaced_in_one_move(tmp_path: Path):
    write_summary(tmp_path, {"steps": 1})
    with (tmp_path / "summary.json").open("rb") as reader:
        write_summary(tmp_path, {"steps": 2})
        assert msgspec.json.decode(reader.read()) == {"steps": 1}
    assert read_summary(tmp_path) == {"steps": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_left_over_temporary_file_is_in_nobody_s_way(tmp_path: Path):
    (tmp_path / ".summary.json").write_text('{"steps": ')
    write_summary(tmp_path, {"steps": 2})
    assert read_summary(tmp_path) == {"steps": 2}
