from pathlib import Path

import pytest

from rollart_hpc.config.load import load_config
from rollart_hpc.errors import ConfigError

GOOD = """
[run]
name = "r"
steps = 3
[model]
path = "m"
[rollout]
groups_per_step = 4
[pools.local]
hardware = "cpu"
actor_train = 1
actor_gen = 1
environment = 1
reward = 1
[tasks.a]
environment = "m:E"
reward = "m:r"
"""


def config_file(tmp_path: Path, text: str = GOOD) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, *overrides: str, text: str = GOOD) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(config_file(tmp_path, text), overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_overrides_are_toml_values_or_bare_words(tmp_path: Path):
    config = load_config(
        config_file(tmp_path), ["rollout.alpha=0", "run.name=other", "training.learning_rate=1e-3", "tasks.a.weight=2"]
    )
    assert (config.rollout.alpha, config.run.name, config.training.learning_rate) == (0, "other", 1e-3)
    assert config.tasks["a"].weight == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.alhpa=1", "unknown key rollout.alhpa; did you mean 'alpha'?"),
        ("tasks.a.zzz=1", "unknown key tasks.a.zzz; valid keys here: "),
        ("rollout.alpha=-1", "rollout.alpha = -1: input should be greater than or equal to 0"),
        ("rollout.alpha='1'", "rollout.alpha = '1': input should be a valid integer"),
        ("tasks.a.weight=0", "the weights of all tasks (a) are 0"),
        ("tasks.a.weight=-2.5", "tasks.a.weight = -2.5"),
        ("tasks.a.weight=nan", "tasks.a.weight = nan"),
        ("tasks.a.group_size=1", "tasks.a.group_size is 1: a group of one has no standard deviation"),
        ("tasks.a.max_new_tokens=2048", "no room is left for a prompt"),
        ("tasks.a.environment='nothing'", "tasks.a.environment = 'nothing'"),
        ("generation.deterministic='yes'", "generation.deterministic = 'yes': input should be a valid boolean"),
        ("run.name='../x'", "run.name = '../x'"),
        ("pools.local.reward=0", "no pool has a worker of role reward; set reward = 1 in one of ['local']"),
        ("training.tensor_parallel=2", "the pools have 1 actor_train workers"),
        ("run.checkpoint_keep_every=30", "no multiple of run.checkpoint_every = 20; set it to one, such as 40"),
        ("nonsense", "expected key.path=value"),
        ("run.name.x=1", "name is a value, not a section"),
    ],
    ids=lambda value: value[:28],
)
def test_a_wrong_value_says_what_was_got_and_what_is_expected(tmp_path: Path, override: str, said: str):
    assert said in refusal(tmp_path, override)


def test_every_fault_is_listed_on_a_line_of_its_own(tmp_path: Path):
    lines = refusal(tmp_path, "rollout.alpha=-1", "run.stepz=1").splitlines()
    assert len(lines) == 2
    assert all(line.startswith(str(tmp_path)) for line in lines)


def test_a_missing_file_broken_toml_and_a_missing_key_are_told_apart(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.toml")
    assert "not valid TOML" in refusal(tmp_path, text="[run")
    assert "run.steps is missing" in refusal(tmp_path, text=GOOD.replace("steps = 3", ""))
