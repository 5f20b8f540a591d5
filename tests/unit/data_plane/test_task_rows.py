"""The rows of a task's data set."""

import json
from pathlib import Path

import pytest

from rollart_hpc.control_plane.seeds import seed_at
from rollart_hpc.control_plane.task_cursor import TaskCursor
from rollart_hpc.control_plane.task_rollout import TaskRollout
from rollart_hpc.data_plane.task_rows import TaskRows
from rollart_hpc.errors import ConfigError, EnvironmentFault
from tests.builders import run_config


def test_a_seed_finds_its_row_by_number_whatever_lies_between_rows(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    rows = [{"n": 0, "text": "größe\n"}, {"n": 1}, {"n": 2, "list": [1, None]}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text(f"\n{lines[0]}\r\n   \n{lines[1]}\n{lines[2]}")
    found = TaskRows(path)
    assert [found.row(seed) for seed in (0, 1, 2, 3, 2**31 - 1)] == [*rows, rows[0], rows[(2**31 - 1) % 3]]
    path.unlink()
    assert found.row(1) == rows[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n\n{"a": }\n', r"rows.jsonl:3: no JSON: .*one object a line"),
        ("[1]\n", r"rows.jsonl:1: expected a JSON object, got '\[1\]'"),
        (" \n\n", "has no row"),
        (b"\xff\xfe\n", r"rows.jsonl:1: no JSON"),
        ("[" * 100_000, r"rows.jsonl:1: no JSON: .*recursion"),
        (f'{{"n": {2**64}}}', r"rows.jsonl:1: cannot be given to an environment: .*at most 64 bits"),
        ('{"half": "\\ud83d"}', r"rows.jsonl:1: cannot be given to an environment: .*whole characters"),
        (None, "cannot be read: No such file"),
    ],
    ids=["no JSON", "no object", "empty", "no text", "deep", "large number", "half a character", "missing"],
)
def test_a_wrong_data_set_says_its_line(tmp_path: Path, text: str | bytes | None, message: str):
    path = tmp_path / "rows.jsonl"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        list(TaskRows(path).rows())


def test_a_row_that_is_wrong_in_mid_run_is_a_fault_of_the_configuration(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("{}\nnonsense\n")
    with pytest.raises(EnvironmentFault, match=r"configuration: .*rows.jsonl:2"):
        TaskRows(tmp_path / "rows.jsonl").row(1)


def test_a_task_plays_each_row_once_an_epoch(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("{}\n" * 5)
    dataset = str(tmp_path / "rows.jsonl")
    rows = TaskRollout("a", run_config(tasks={"a": {"dataset": dataset}}), TaskCursor())
    assert [sorted(rows.seed(index + epoch) for index in range(5)) for epoch in (0, 5)] == [list(range(5))] * 2
    fewer = TaskRollout("a", run_config(tasks={"a": {"dataset": dataset, "num_seeds": 2}}), TaskCursor())
    assert sorted(fewer.seed(index) for index in range(2)) == [0, 1]


def test_the_order_of_an_epoch_never_changes():
    assert [seed_at(3, "a", index, 6) for index in range(12)] == [0, 2, 4, 1, 3, 5, 1, 4, 3, 0, 5, 2]
