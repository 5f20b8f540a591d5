"""Nothing is lost and nothing done twice, whoever is killed at whichever step of the protocol."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.control_plane.audit import audit
from rollart_hpc.control_plane.journal import BatchFormed, Finished, HandedIn, Published, Record, read_journal
from rollart_hpc.launcher.chaos import compare_runs, trained_ids
from rollart_hpc.observe.metrics import read_metrics
from rollart_hpc.warm_start.tiny_model import make_tiny_model
from tests.integration.run.driver import ARITHMETIC, DEADLINE_S, HERE, Run
from tests.unbroken import SETTINGS, STEPS

FROZEN_LAKE = ARITHMETIC.with_name("frozen_lake.toml")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def break_run(
    run: Run, config: Path, model: Path, *, kill: str, at: list[str], signal: str, settings: Sequence[str]
) -> Any:
    """The report of a run with faults, which got to its end."""
    settings = [*settings, f"model.path={model}", f"run.directory={run.directory}"]
    moments = [word for moment in at for word in ("--at", moment)]
    argv = [sys.executable, "-m", "rollart_hpc.cli.main", "chaos", str(config), "--json", "--kill", kill, *moments]
    argv += [f"--signal={signal}", *(f"--set={one}" for one in settings)]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=3 * DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["fired"] == report["asked"] == len(at)
    return report


@pytest.mark.parametrize(
    ("kill", "at"),
    [
        pytest.param("controller", ["get_batch:1", "resume:2", "commit:4"], id="controller"),
        pytest.param("actor_train", ["train_step:1", "checkpoint:4"], id="trainer"),
        pytest.param("job", ["suspend:1", "update:2", "recompute:3", "train_step:7"], id="job"),
    ],
)
def test_a_run_with_kills_is_the_unbroken_run(
    run: Run, arithmetic_model: Path, unbroken_run: Path, kill: str, at: list[str]
):
    report = break_run(run, ARITHMETIC, arithmetic_model, kill=kill, at=at, signal="KILL", settings=SETTINGS)
    assert compare_runs(run.directory, unbroken_run) == []
    assert sorted(trained_ids(run.directory)) == sorted(trained_ids(unbroken_run))
    assert audit(run.directory).findings == ()
    assert report["replayed_equal"] == report["replayed"] > 0
    assert [record["step"] for record in read_metrics(run.directory)] == list(range(1, STEPS + 1))
    records = list(read_journal(run.directory))
    finished = [one.trajectory.trajectory_id for one in records if isinstance(one, Finished)]
    assert len(finished) == len(set(finished)), "a finished trajectory was generated again"
    batches = [record.step for record in records if isinstance(record, BatchFormed)]
    assert batches == list(range(STEPS)), "a batch was formed twice"
    digests = digests_of(records)
    assert all(len(set(seen)) == 1 for seen in digests.values()), "a version has other weights than before the kill"
    assert len({seen[0] for seen in digests.values()}) == STEPS + 1, "the weights do not change at all"
    if "train_step:7" in at:  # three steps behind the checkpoint
        assert all(len(digests[version]) > 1 for version in (4, 5, 6, 7))


def digests_of(records: list[Record]) -> dict[int, list[str]]:
    """Of the weights of each version, as often as it was published."""
    digests: dict[int, list[str]] = {}
    for record in records:
        if isinstance(record, Published):
            digests.setdefault(record.version, []).append(record.digest)
    return digests


def test_a_notice_in_the_middle_of_episodes_hands_in_their_turns_which_go_on_after_the_resume(run: Run, tmp_path: Path):
    model = tmp_path / "model"
    make_tiny_model(model, seed=0, tasks=("frozen_lake",), steps=0)
    settings = ("run.steps=3", "generation.deterministic=true")
    report = break_run(
        run, FROZEN_LAKE, model, kill="environment", at=["train_step:0"], signal="USR2", settings=settings
    )
    assert report["handed_in"] > 0
    assert len(report["saved_s"]) == 1
    logs = {one.log.trajectory_id: one.log for one in read_journal(run.directory) if isinstance(one, HandedIn)}
    finished = {
        one.trajectory.trajectory_id: one.trajectory for one in read_journal(run.directory) if isinstance(one, Finished)
    }
    assert audit(run.directory).findings == ()
    for trajectory_id, log in logs.items():
        trajectory = finished[trajectory_id]
        assert trajectory.restarted == ""
        assert trajectory.num_continued_turns >= len(log.turns)
        assert trajectory.num_turns >= trajectory.num_continued_turns
        if len(trajectory.token_ids):  # not compacted yet
            assert trajectory.token_ids.tobytes().startswith(log.token_ids[: 4 * (log.loss_mask.rfind(1) + 1)])


def test_a_run_goes_on_with_another_layout_and_fewer_workers(run: Run, arithmetic_model: Path):
    wide: dict[str, object] = {
        "training.tensor_parallel": 2,
        "pools.h800.actor_train": 2,
        "pools.h20.actor_gen": 2,
        "run.steps": 2,
    }
    code, output = run.train(ARITHMETIC, arithmetic_model, **wide)
    assert code == 0, output
    narrow = {**wide, "training.tensor_parallel": 1, "pools.h800.actor_train": 1, "pools.h20.actor_gen": 1}
    narrow["run.steps"] = 4
    code, output = run.execute("resume", run.directory, *(f"--set={key}={value}" for key, value in narrow.items()))
    assert code == 0, output
    assert "changed: training.tensor_parallel = 1, was 2" in output
    assert run.summary["steps"] == 4
    assert audit(run.directory).findings == ()
