from pathlib import Path

import pytest

from rollart_hpc.errors import ConfigError
from rollart_hpc.simulate.plot import check_plot
from rollart_hpc.simulate.scenario import PACKAGED, find_scenario, load_scenario

TEXT = find_scenario("interaction").read_text()


def refusal(path: Path, text: str, *overrides: str) -> str:
    file = path / "scenario.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_scenario(file, overrides)
    return str(refused.value)


@pytest.mark.parametrize("path", sorted(PACKAGED.glob("*.toml")), ids=lambda path: path.stem)
def test_scenarios_of_the_package_are_complete(path: Path):
    assert load_scenario(path).configurations


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_runs(tmp_path: Path):
    drawn = load_scenario(find_scenario("interaction"))
    check_plot(tmp_path / "x.png", [drawn])
    for path, scenario in (
        (tmp_path / "x.txt", drawn),
        (tmp_path / "none" / "x.png", drawn),
        (tmp_path / "x.png", load_scenario(find_scenario("scale"))),
    ):
        with pytest.raises(ConfigError, match="--plot"):
            check_plot(path, [scenario])


def test_lines_need_numbers(tmp_path: Path):
    assert "expected SERIES-X with a number X" in refusal(tmp_path, TEXT.replace("batched-1", "batched"))


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("decode_efficiency", "emulation.model.decode_efficiency is missing; add it"),
        ("pull_gb_s", "emulation.transfer.pull_gb_s is missing; add it"),
        ("generation = 1", "emulation.devices.generation is missing: devices of one worker of that pool; add it"),
        ("reset_s", "emulation.tasks.environment.reset_s is missing; add it"),
    ],
)
def test_a_missing_figure_is_named(tmp_path: Path, without: str, said: str):
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith(without))
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("emulation.tasks.environment.step_s={median=2.0,p99=1.0}", "p99 is 1, below the median 2"),
        ("emulation.time_scale=0", "emulation.time_scale = 0: input should be greater than 0"),
        ("emulation.model.name=Qwen9", "no figures of a model 'Qwen9'; known are"),
        ("hardware.H800.tflops=-1", "hardware.H800.tflops = -1"),
        ("rollout={mode='sync',alpha=2,groups_per_step=2}", 'mode = "sync" means alpha = 0, got 2'),
        ("pools.generation.hardware=B300", "hardware class B300 has no tflops; give it in [hardware.B300]"),
        ("ratios.x={slow='a',fast='b'}", "ratios"),
    ],
)
def test_wrong_figures_are_refused(tmp_path: Path, override: str, said: str):
    assert said in refusal(tmp_path, TEXT, override)


def test_a_configuration_changes_what_it_says_alone():
    configurations = load_scenario(find_scenario("interaction")).configurations
    batched, trajectory = configurations["batched-1"], configurations["trajectory-1"]
    assert batched.emulation == trajectory.emulation
    assert batched.config["rollout"] == trajectory.config["rollout"] | {"interaction": "batched"}


def test_times_of_the_config_are_scaled(tmp_path: Path):
    scenario = load_scenario(find_scenario("interaction"), ["emulation.time_scale=50.0"]).configurations["batched-1"]
    config = scenario.run_config(tmp_path / "model", tmp_path / "run")
    assert config.rollout.generate_timeout_s == scenario.config["rollout"]["generate_timeout_s"] / 50
    assert config.tasks["environment"].step_timeout_s == 600 / 50
