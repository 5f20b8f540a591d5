"""What goes wrong in a run's processes and environments, and what becomes of the run."""

import json
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from rollart_hpc.control_plane.audit import audit
from rollart_hpc.control_plane.checkpoint import find_newest
from rollart_hpc.control_plane.journal import Finished, HandedIn, read_journal
from rollart_hpc.control_plane.model_identity import describe_model
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.launcher.attempt_log import read_attempts, read_members
from rollart_hpc.launcher.pools import read_pools
from rollart_hpc.observe.assessment import assess_summary
from rollart_hpc.observe.metrics import read_metrics
from tests.integration.run.driver import ARITHMETIC, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UNRELIABLE = """
[run]
name = "unreliable"
steps = 6
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
environment_args = {{ mode = "{mode}", episodes = "{episodes}" }}
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


PATIENT = """
[tasks.patient]
environment = "environments:Patient"
environment_args = {{ steps = "{steps}" }}
reward = "environments:score"
group_size = 4
max_turns = 3
max_new_tokens = 4
"""


def test_bad_environments_cost_their_own_trajectories_only_and_a_guest_that_leaves_costs_none(
    run: Run, arithmetic_model: Path, tmp_path: Path
):
    config, steps = tmp_path / "run.toml", tmp_path / "steps"
    tasks = [TASK.format(mode=mode, episodes=tmp_path / mode) for mode in MODES]
    config.write_text(UNRELIABLE + "".join(tasks) + PATIENT.format(steps=steps))
    run.start(*run.arguments(config, arithmetic_model))
    run.wait_until(lambda: read_members(run.directory, 1))
    told = Attempt.read(run.directory / "attempts" / "1" / "attempt.json")
    assert told.model == describe_model(arithmetic_model)
    guest = Run(run.directory)
    guest.start("join", run.directory, "--role=environment", "--pool=all")
    run.wait_until(lambda: steps.exists() and {str(pid) for pid in guests_of(run)} & set(steps.read_text().split()))
    assert guest.process is not None
    guest.process.send_signal(signal.SIGTERM)
    code, output = guest.wait()
    assert code == 0, output
    assert " has left" in output
    code, output = run.wait()
    assert code == 0, output
    assert [one.event for one in read_attempts(run.directory)] == ["started", "done"]
    records = list(read_journal(run.directory))
    handed_in = {one.log.trajectory_id for one in records if isinstance(one, HandedIn)}
    finished = {one.trajectory.trajectory_id: one.trajectory for one in records if isinstance(one, Finished)}
    assert [one for one in handed_in if one.startswith("patient") and finished[one].num_continued_turns]
    assert {finished[one].worker for one in handed_in & finished.keys()} == {"environment-0"}
    assert audit(run.directory).findings == ()
    assert assess_summary(run.summary, {}) == []
    assert run.summary["trajectories"]["trained"] == 6 * 8 * 4
    causes = run.summary["causes"]
    for mode, cause in MODES.items():
        assert causes[cause] > 0, mode


def guests_of(run: Run) -> list[int]:
    """Process ids of workers that have joined the running run."""
    return [one.pid for one in read_members(run.directory, 1) if one.guest]


def test_a_class_of_generation_workers_that_dies_is_replaced_at_once_and_comes_back(run: Run, arithmetic_model: Path):
    """And an environment worker dies with it, which costs nothing either."""
    settings = {
        "run.steps": 500,
        "pools.h800.actor_gen": 1,
        "pools.cpu.environment": 2,
        "affinity.arithmetic": "H800",
        "tasks.sums.environment": "rollart_hpc.envs.arithmetic:Arithmetic",
        "tasks.sums.reward": "rollart_hpc.reward_functions.arithmetic:score",
        "tasks.sums.max_new_tokens": 24,
    }
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **settings))
    run.wait_for_step(5)
    assert shares(run, "arithmetic", first=1, last=5)["H800"] >= 0.99
    assert shares(run, "sums", first=1, last=5)["H20"] >= 0.99
    killed_at = time.time()
    run.kill("actor_gen-0")
    run.kill("environment-1")
    run.wait_until(lambda: course(run).count("H800") == 2)
    back = next_step(run)
    run.wait_until(lambda: shares(run, "arithmetic", first=next_step(run) - 1, last=500).keys() == {"H800"})
    run.wait_for_step(45)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    code, output = run.wait()
    assert code == 75, output
    assert "actor_gen-0 ended with killed by SIGKILL; starting it again" in output
    assert audit(run.directory).findings == ()
    faults = assess_summary(run.summary, {"arithmetic": 0.85, "sums": 0.85})
    assert [fault for fault in faults if "are confirmed at version" not in fault] == []
    assert run.summary["trajectories"]["trained"] == run.summary["steps"] * 16 * 8
    assert shares(run, "arithmetic", first=8, last=back)["H20"] > 0.5
    assert shares(run, "sums", first=1, last=back).keys() == {"H20"}
    code, output = run.execute("pools", run.directory, "--json")
    assert code == 0, output
    history = [one for one in json.loads(output)["history"] if one["tag"] == "arithmetic" and one["hardware"]]
    lost, restored = history[-2:]
    assert (lost["hardware"], lost["reason"]) == ("H20", "H800 has no live actor_gen worker; H20 serves")
    assert 0 <= lost["at"] - killed_at < 5
    assert (restored["hardware"], restored["reason"]) == ("H800", "H800 is back; affinity.arithmetic asks for it")


def course(run: Run) -> list[str]:
    """The classes to which arithmetic was bound, one after the other."""
    return [one.hardware for one in read_pools(run.directory).history if one.tag == "arithmetic"]


def next_step(run: Run) -> int:
    return read_metrics(run.directory)[-1]["step"] + 1


def shares(run: Run, task: str, *, first: int, last: int) -> dict[str, float]:
    """Of a task's trained tokens by hardware class."""
    total: Counter[str] = Counter()
    for record in read_metrics(run.directory):
        if first <= record["step"] <= last:
            total.update(record["tasks"][task]["tokens_by_hardware"])
    return {hardware: tokens / total.total() for hardware, tokens in total.items()}


def kill_and_wait(run: Run, victim: str) -> None:
    """Kills a process without which the attempt cannot go on, and waits until the run has said so and is over."""
    run.kill(victim)
    code, output = run.wait()
    assert code == 1, output
    assert f"{victim} ended with killed by SIGKILL" in output
    assert f"rollart-hpc resume {run.directory}" in output
    assert run.processes() == []


def test_a_run_waits_for_its_only_generation_worker_ends_with_its_controller_and_is_resumed(
    run: Run, arithmetic_model: Path
):
    settings = {"run.steps": 500, "run.checkpoint_every": 2, "run.max_failures": 1}
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **settings))
    run.wait_for_step(3)
    run.kill("actor_gen-0")
    run.wait_for_step(8)
    kill_and_wait(run, "controller")
    assert find_newest(run.directory) is not None
    steps = read_metrics(run.directory)[-1]["step"] + 2
    code, output = run.execute("resume", run.directory, f"--set=run.steps={steps}")
    assert code == 0, output
    assert run.summary["steps"] == steps
    assert assess_summary(run.summary, {}) == []


def test_a_run_can_be_resumed_again_and_again_from_one_place(run: Run, arithmetic_model: Path):
    settings = {"run.steps": 500, "run.checkpoint_every": 400, "run.max_failures": 1}
    run.start(*run.arguments(ARITHMETIC, arithmetic_model, **settings))
    for step, victim in ((3, "actor_train-0"), (2, "controller")):
        run.wait_for_step(step)
        kill_and_wait(run, victim)
        (run.directory / "metrics.jsonl").unlink()
        run.start("resume", run.directory, "--set=run.steps=4")
    code, output = run.wait()
    assert code == 0, output
    assert [record["step"] for record in read_metrics(run.directory)] == [1, 2, 3, 4]
    assert assess_summary(run.summary, {}) == []
