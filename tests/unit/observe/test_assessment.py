import math
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.errors import ConfigError
from rollart_hpc.observe.assessment import assess_summary, require_summary
from rollart_hpc.observe.metrics import write_summary
from tests.unit.observe.summaries import summary


def test_a_good_run_has_no_fault():
    assert assess_summary(summary(), {"lake": 0.75}) == []
    assert assess_summary(summary(), {}) == []


def gap(mean: float, tokens: int = 500) -> dict[str, Any]:
    return {"logprob_gap": {"mean": mean, "max": mean, "tokens": tokens}}


def test_a_mode_that_trains_what_is_older_than_its_bound_has_no_bound_to_break():
    assert assess_summary(summary(max_staleness_trained=2, schedule={"alpha": 1, "stale": "train"}), {}) == []


@pytest.mark.parametrize(
    ("changes", "thresholds", "said"),
    [
        ({}, {"lake": 0.8}, "task lake: success of the last steps is 0.750, expected 0.8 or more"),
        ({}, {"sums": 0.1}, "task sums: not in this run; it has ['lake']"),
        ({"tasks": {"lake": {"success_last": math.nan}}}, {"lake": 0.0}, "task lake: success of the last steps is nan"),
        ({"trajectories": {"dispatched": 5, "trained": 3, "pending": 1}}, {}, "does not balance: 5 dispatched, 4 acc"),
        ({"max_staleness_trained": 2}, {}, "a trajectory of staleness 2 was trained, alpha is 1"),
        ({"confirmed_version": 2}, {}, "confirmed at version 2, the trainer is at 3"),
        ({"probe_gap_max": 2e-3}, {}, "a probe logprob was 2.0e-03 off"),
        ({"probe_gap_max": math.inf}, {}, "a probe logprob was inf off"),
        (gap(2e-4), {}, "sampler and trainer differ by 2.0e-04 per token"),
        (gap(math.nan), {}, "sampler and trainer differ by nan per token"),
        (gap(math.inf), {}, "sampler and trainer differ by inf per token"),
    ],
    ids=[
        "success",
        "unknown",
        "no success",
        "ledger",
        "staleness",
        "delivery",
        "probe",
        "infinite probe",
        "gap",
        "NaN gap",
        "infinite gap",
    ],
)
@pytest.mark.parametrize("from_disk", [False, True])
def test_what_does_not_hold_is_said_in_one_line(
    tmp_path: Path, changes: dict[str, Any], thresholds: dict[str, float], said: str, from_disk: bool
):
    found = summary(**changes)
    if from_disk:
        write_summary(tmp_path, found)
        found = require_summary(tmp_path)
        said = said.replace(" inf ", " nan ")
    (fault,) = assess_summary(found, thresholds)
    assert said in fault


@pytest.mark.parametrize("changes", [{**gap(0.01), "dtype": "bfloat16"}, gap(0.0, tokens=0)], ids=["bf16", "no tokens"])
def test_the_gap_is_judged_where_it_means_something(changes: dict[str, Any]):
    assert assess_summary(summary(**changes), {}) == []


def test_every_fault_is_listed():
    broken = summary(confirmed_version=0, max_staleness_trained=9)
    assert len(assess_summary(broken, {"lake": 1.0, "sums": 1.0})) == 4


def test_a_directory_without_a_summary_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no summary\.json; it is written when an attempt ends"):
        require_summary(tmp_path)


def test_a_summary_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "summary.json").write_text('["other"]')
    with pytest.raises(ConfigError, match=r"summary\.json: not the summary of a run"):
        require_summary(tmp_path)
