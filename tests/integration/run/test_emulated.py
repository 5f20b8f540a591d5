"""Scenarios through the real control plane, bus and weight store."""

import json
from pathlib import Path

import pytest
import uvloop

from rollart_hpc.simulate.emulated_run import EmulatedRun, run_scenario
from rollart_hpc.simulate.measurement import measure
from rollart_hpc.simulate.scenario import Scenario, find_scenario, load_scenario

QUICK = [
    "emulation.time_scale=300.0",
    "emulation.steps=4",
    "emulation.warm_up_steps=1",
    "rollout.groups_per_step=4",
    "pools.generation.actor_gen=2",
]


def scenario_of(name: str, configuration: str, *overrides: str) -> Scenario:
    return load_scenario(find_scenario(name), [*QUICK, *overrides]).configurations[configuration]


def played(scenario: Scenario, directory: Path) -> EmulatedRun:
    return uvloop.run(run_scenario(scenario, directory))


def test_a_scenario_measures_what_its_figures_say(tmp_path: Path):
    scenario = scenario_of("mixing", "both", "tasks.quick.redundancy=1")
    run = played(scenario, tmp_path)
    found = measure(run, scenario)
    assert found.trained_share == {"slow": 0.5, "quick": 0.5}
    slow = run.summary["tasks"]["slow"]
    assert slow["turns_mean"] == 5
    assert found.trajectory_s["slow"]["step"] >= 0.9 * 5 * 20, "five steps of 20 s"
    assert run.summary["tasks"]["quick"]["redundancy"]["cut"] > 0
    assert 0 < found.idle_share["train"] < 1
    balance = run.summary["trajectories"]
    assert balance["trained"] >= 5 * 4 * 8
    assert balance["dispatched"] == sum(count for outcome, count in balance.items() if outcome != "dispatched")


@pytest.mark.parametrize("configuration", ["batched-5", "trajectory-5"])
def test_batched_turns_wait_for_each_other(tmp_path: Path, configuration: str):
    scenario = scenario_of("interaction", configuration, "emulation.steps=1", "tasks.environment.group_size=4")
    waited_s = measure(played(scenario, tmp_path), scenario).trajectory_s["environment"].get("batch_wait", 0.0)
    assert (waited_s > 1) == (configuration == "batched-5")


def test_one_hanging_member_in_every_group_holds_up_no_step_beyond_its_deadline(tmp_path: Path):
    scenario = scenario_of(
        "interaction",
        "trajectory-1",
        "emulation.tasks.environment.hangs_in_step=0.12",
        "tasks.environment.step_timeout_s=60.0",
    )
    run = played(scenario, tmp_path)
    assert set(run.summary["causes"]) == {"failed: environment step_timeout"}
    assert run.summary["trajectories"]["failed"] >= 5
    assert run.summary["trajectories"]["trained"] >= 5 * 4 * 8
    assert run.summary["poisoned"] == {}


def test_the_result_of_the_command_is_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from rollart_hpc.cli.bench_rollout import bench_rollout

    quick = [*QUICK, "emulation.steps=1", "tasks.environment.group_size=2"]
    picture = tmp_path / "picture.png"
    bench_rollout(["interaction"], "trajectory-1", quick, picture, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["step_s.trajectory-1"] > 0
    assert 0 <= found["idle_share.trajectory-1.generation"] <= 1
    assert picture.read_bytes().startswith(b"\x89PNG")
