"""The paper's five tasks in one model: each environment that ships is trained on, with its own reward."""

from pathlib import Path

import pytest

from rollart_hpc.warm_start.tiny_model import make_text_model
from tests.integration.run.driver import Run

FIVE_TASKS = Path(__file__).parents[3] / "examples" / "five_tasks.toml"


@pytest.mark.slow
def test_five_tasks_are_trained_together_and_nothing_is_lost(run: Run, tmp_path: Path) -> None:
    make_text_model(tmp_path / "model", seed=0)
    code, output = run.train(FIVE_TASKS, tmp_path / "model", **{"run.steps": 2, "run.checkpoint_every": 2})
    assert code == 0, output
    trajectories = run.summary["trajectories"]
    assert trajectories["trained"] == 2 * 6 * 4
    assert (trajectories["poisoned"], trajectories["pending"]) == (0, 0)
    assert {name: task["turns_mean"] >= 1 for name, task in run.summary["tasks"].items()} == dict.fromkeys(
        ("frozen_lake", "gem_game", "gem_math", "webshop", "swe"), True
    )
    code, output = run.execute("ledger", run.directory, "--check")
    assert code == 0, output
