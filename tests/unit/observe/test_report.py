import math
from pathlib import Path

import pytest
from rich.console import Console

from rollart_hpc.observe.metrics import MetricsWriter, write_summary
from rollart_hpc.observe.report import print_report
from rollart_hpc.observe.sparkline import sparkline
from tests.unit.observe.summaries import summary


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([-5.0, 7.0], "▁█"),
        ([0.124, 0.126], "▁▂"),
        ([], ""),
        ([0.0, math.nan, 1.0], "▁ █"),
        ([math.inf, -math.inf], "  "),
    ],
    ids=["scale", "outside", "steps", "empty", "NaN", "infinite"],
)
def test_values_become_bars(values: list[float], line: str):
    assert sparkline(values) == line


def test_bars_fill_the_given_range():
    assert sparkline([10, 20], low=10, high=20) == "▁█"
    assert sparkline([3, 3], low=3, high=3) == "▁▁"


def report_of(directory: Path, records: int = 3, **changes: object) -> str:
    metrics = MetricsWriter(directory, after_step=0)
    for step in range(1, records + 1):
        metrics.write(step, {"tasks": {"lake": {"success": step / 4}}})
    metrics.close()
    write_summary(directory, summary(**changes))
    console = Console(width=120, record=True)
    print_report(console, directory)
    return console.export_text()


def test_the_report_says_how_it_went(tmp_path: Path):
    text = report_of(tmp_path)
    for said in ("lake", "0.25", "0.75", "▃▅▇", "4.5", "80%", "1 of 1", "1.0e-06", "train_step", "50%"):
        assert said in text


def test_a_run_that_was_stopped_before_its_first_step_has_a_report(tmp_path: Path):
    assert "startup" in report_of(tmp_path, 0, logprob_gap={"mean": 0.0, "max": 0.0, "tokens": 0}, steps=0)


def test_a_run_whose_numbers_went_wrong_has_a_report(tmp_path: Path):
    metrics = MetricsWriter(tmp_path, after_step=0)
    metrics.write(0, {"tasks": {"lake": {"success": math.nan}}})
    metrics.close()
    assert "nan" in report_of(tmp_path, logprob_gap={"mean": math.nan, "max": math.nan, "tokens": 5})


def test_a_task_that_came_later_has_a_report(tmp_path: Path):
    tasks = {"sums": summary()["tasks"]["lake"], "lake": summary()["tasks"]["lake"]}
    assert "sums" in report_of(tmp_path, tasks=tasks)


def test_the_report_says_where_tokens_were_generated_when_there_are_several_classes(tmp_path: Path):
    assert "generated on" not in report_of(tmp_path)
    task = summary()["tasks"]["lake"]
    tasks = {"lake": {**task, "tokens_by_hardware": {"H20": 6, "H800": 1994}}, "sums": task}
    lines = report_of(tmp_path, tasks=tasks).splitlines()
    assert "tokens generated on" in lines[1]
    assert [line.partition("80%")[2].strip() for line in lines[2:4]] == ["H800 99.7%, H20 0.3%", "H20 100.0%"]


def test_the_report_ends_with_the_advice(tmp_path: Path):
    assert "advice" not in report_of(tmp_path)
    affinity = {"mode": "advise", "mapping": {}, "changes": 0, "advice": "lake on [h800]: generation 23% shorter"}
    assert report_of(tmp_path, affinity=affinity).endswith("advice: lake on [h800]: generation 23% shorter\n")


def test_a_run_that_left_nothing_has_no_report(tmp_path: Path):
    console = Console(record=True)
    print_report(console, tmp_path)
    assert console.export_text() == ""
