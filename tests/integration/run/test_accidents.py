"""What goes wrong in a run's processes and environments, and what becomes of the run."""

import signal
import time
from pathlib import Path

import pytest

from rollart_hpc.control_plane.checkpoint import find_newest
from rollart_hpc.observe.assessment import assess_summary
from rollart_hpc.observe.metrics import read_metrics
from tests.integration.run.driver import ARITHMETIC, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UNRELIABLE = """
[run]
name = "unreliable"
steps = 3
[model]
path = "model"
max_context = 64
[rollout]
groups_per_step = 8
trajectories_per_worker = 24
[training]
learning_rate = 1e-4
[generation]
kv_cache_mb = 32
[pools.all]
hardware = "cpu"
actor_train = 1
actor_gen = 1
environment = 1
reward = 1
"""
TASK = """
[tasks.{mode}]
environment = "environments:Unreliable"
environment_args = {{ mode = "{mode}" }}
reward = "environments:score"
group_size = 4
max_new_tokens = 8
reset_timeout_s = 4.0
step_timeout_s = 2.0
"""
MODES = {
    "hang_in_reset": "failed: environment reset_timeout",
    "hang_in_step": "failed: environment step_timeout",
    "raise": "failed: environment raised",
    "die": "failed: environment died",
}


def test_environments_that_hang_raise_and_die_cost_their_own_trajectories_only(
    run: Run, arithmetic_model: Path, tmp_path: Path
):
    config = tmp_path / "run.toml"
    config.write_text(UNRELIABLE + "".join(TASK.format(mode=mode) for mode in MODES))
    code, output = run.train(config, arithmetic_model)
    assert code == 0, output
    assert assess_summary(run.summary, {}) == []
    assert run.summary["trajectories"]["trained"] == 3 * 8 * 4
    causes = run.summary["causes"]
    for mode, cause in MODES.items():
        assert causes[cause] > 0, mode


def test_a_run_survives_the_death_of_a_generation_and_an_environment_worker(run: Run, arithmetic_model: Path):
    settings = {"pools.h20.actor_gen": 2, "pools.cpu.environment": 2, "run.steps": 45}
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **settings))
    run.wait_for_step(5)
    run.kill("actor_gen-0")
    run.kill("environment-1")
    code, output = run.wait()
    assert code == 0, output
    assert "actor_gen-0 ended with killed by SIGKILL; starting it again" in output
    assert assess_summary(run.summary, {"arithmetic": 0.85}) == []
    assert run.summary["trajectories"]["trained"] == 45 * 16 * 8


def test_a_run_whose_only_generation_worker_dies_waits_for_the_new_one(run: Run, arithmetic_model: Path):
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **{"run.steps": 12}))
    run.wait_for_step(3)
    run.kill("actor_gen-0")
    code, output = run.wait()
    assert code == 0, output
    assert run.summary["confirmed_version"] == 12
    assert assess_summary(run.summary, {}) == []


def test_ctrl_c_saves_stops_everything_within_twenty_seconds_and_the_run_can_be_resumed(
    run: Run, arithmetic_model: Path
):
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **{"run.steps": 500}))
    run.wait_for_step(3)
    assert run.process is not None
    begin = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    code, output = run.wait()
    assert code == 75, output
    assert time.monotonic() - begin < 20
    assert run.processes() == []
    saved = find_newest(run.directory)
    assert saved is not None
    assert saved.state.step == run.summary["steps"] >= 3
    code, output = run.execute("resume", run.directory, f"--set=run.steps={saved.state.step + 2}")
    assert code == 0, output
    assert run.summary["steps"] == saved.state.step + 2
    assert assess_summary(run.summary, {}) == []


@pytest.mark.parametrize("victim", ["controller", "actor_train-0"])
def test_the_death_of_controller_or_trainer_ends_the_attempt_and_resume_goes_on(
    run: Run, arithmetic_model: Path, victim: str
):
    settings = {"run.steps": 500, "run.checkpoint_every": 2}
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **settings))
    run.wait_for_step(4)
    run.kill(victim)
    code, output = run.wait()
    assert code == 1
    assert "killed by SIGKILL" in output
    assert f"rollart-hpc resume {run.directory}" in output
    assert run.processes() == []
    saved = find_newest(run.directory)
    assert saved is not None
    code, output = run.execute("resume", run.directory, f"--set=run.steps={saved.state.step + 1}")
    assert code == 0, output
    assert run.summary["steps"] == saved.state.step + 1
    assert assess_summary(run.summary, {}) == []


def test_a_run_can_be_resumed_again_and_again_from_one_place(run: Run, arithmetic_model: Path):
    settings = {"run.steps": 500, "run.checkpoint_every": 400}
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **settings))
    for step in (3, 2):
        run.wait_for_step(step)
        run.kill("controller")
        code, output = run.wait()
        assert code == 1, output
        (run.directory / "metrics.jsonl").unlink()
        run.start("resume", run.directory, "--set=run.steps=4")
    code, output = run.wait()
    assert code == 0, output
    assert [record["step"] for record in read_metrics(run.directory)] == [1, 2, 3, 4]
    assert assess_summary(run.summary, {}) == []
