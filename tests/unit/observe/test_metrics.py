import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rollart_hpc.observe.metrics import MetricsWriter, flatten, read_metrics, read_summary, write_summary


def write(directory: Path, *steps: int, **record: object) -> None:
    writer = MetricsWriter(directory, after_step=steps[0] - 1)
    for step in steps:
        writer.write(step, {"loss": step / 2, "tasks": {"lake": {"success": 0.5}}, **record})
    writer.close()


def steps_of(directory: Path) -> list[int]:
    return [record["step"] for record in read_metrics(directory)]


def test_records_come_back_in_order(tmp_path: Path):
    before = time.time()
    write(tmp_path, 1, 2, note="größer")
    records = read_metrics(tmp_path)
    times = [record.pop("at") for record in records]
    assert before <= times[0] <= times[1] <= time.time()
    assert records == [
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


def lines_of(directory: Path) -> list[int]:
    """The steps of the file's lines as they are; each must be a record."""
    lines = (directory / "metrics.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line)["step"] for line in lines]


def events_of(directory: Path) -> list[int]:
    events = EventAccumulator(str(directory / "tensorboard")).Reload()
    return [event.step for event in events.Scalars("loss")]


@contextlib.contextmanager
def files_cannot_outgrow(size_bytes: int) -> Iterator[None]:
    """What a full disk does: a write is taken in part, then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("cut", [0, 7], ids=["killed between writes", "killed in a write"])
def test_no_step_is_there_twice_after_a_kill_and_a_resume_from_an_older_step(tmp_path: Path, cut: int):
    killed = MetricsWriter(tmp_path, after_step=0)
    for step in (1, 2, 3, 4):
        killed.write(step, {"loss": 1.0})
    for path in (tmp_path / "metrics.jsonl", next((tmp_path / "tensorboard").iterdir())):
        path.write_bytes(path.read_bytes()[: -cut or None])
    write(tmp_path, 3, 4, 5)
    assert lines_of(tmp_path) == events_of(tmp_path) == [1, 2, 3, 4, 5]


def test_a_kill_takes_no_step_that_was_written(tmp_path: Path):
    writer = MetricsWriter(tmp_path, after_step=0)
    writer.write(1, {"loss": 1.0})
    assert lines_of(tmp_path) == events_of(tmp_path) == [1]
    writer.close()


@pytest.mark.parametrize("room", [0, 20, 60])
def test_on_a_full_disk_the_run_goes_on_and_nothing_is_torn_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, room: int
):
    writer = MetricsWriter(tmp_path, after_step=0)
    writer.write(1, {"loss": 1.0})
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    with files_cannot_outgrow(min(sizes) + room):
        for step in (2, 3, 4):
            writer.write(step, {"loss": 1.0})
    assert steps_of(tmp_path)[0] == 1
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert all("CANNOT BE WRITTEN: File too large" in text and "bytes are free" in text for text in warnings)
    writer.write(5, {"loss": 1.0})
    writer.close()
    assert lines_of(tmp_path) == events_of(tmp_path) == [1, 2, 3, 4, 5]


def test_a_run_that_is_killed_on_a_full_disk_resumes_without_the_steps_that_were_not_written(tmp_path: Path):
    writer = MetricsWriter(tmp_path, after_step=0)
    for step in (1, 2):
        writer.write(step, {"loss": 1.0})
    with files_cannot_outgrow((tmp_path / "metrics.jsonl").stat().st_size + 9):
        writer.write(3, {"loss": 1.0})
    write(tmp_path, 4, 5)
    assert lines_of(tmp_path) == [1, 2, 4, 5]


def test_a_run_can_be_resumed_on_a_full_disk(tmp_path: Path):
    write(tmp_path, 1, 2, 3)
    with files_cannot_outgrow(0):
        writer = MetricsWriter(tmp_path, after_step=2)
        writer.write(3, {"loss": 1.0})
        assert lines_of(tmp_path) == [1, 2]
    writer.close()
    assert lines_of(tmp_path) == events_of(tmp_path) == [1, 2, 3]


def test_what_never_found_room_is_told_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with files_cannot_outgrow(0):
        writer = MetricsWriter(tmp_path, after_step=0)
        writer.write(1, {"loss": 1.0})
        writer.close()
    assert "metrics.jsonl: its last" in caplog.text


def test_a_line_that_lost_only_its_end_counts_and_is_ended(tmp_path: Path):
    write(tmp_path, 1, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    write(tmp_path, 3)
    assert lines_of(tmp_path) == [1, 2, 3]


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


def test_a_summary_on_a_full_disk_leaves_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_summary(tmp_path, {"steps": 1})
    with files_cannot_outgrow(3):
        write_summary(tmp_path, {"steps": 2})
    assert read_summary(tmp_path) == {"steps": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert "summary.json CANNOT BE WRITTEN: File too large" in caplog.text


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
