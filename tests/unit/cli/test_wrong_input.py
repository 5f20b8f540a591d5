"""Wrong input ends a command with exit code 2 and one line per fault, before anything is started."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollart_hpc.cli.main import main
from rollart_hpc.launcher.run_directory import create, read_config
from rollart_hpc.warm_start.tokenizer import save_tokenizer

CONFIG = """
[run]
name = "r"
steps = 3
directory = "{directory}/run"
[model]
path = "{directory}/model"
[rollout]
groups_per_step = 4
[pools.local]
hardware = "cpu"
actor_train = 1
actor_gen = 1
environment = 1
reward = 1
[tasks.a]
environment = "rollart_hpc.envs.arithmetic:Arithmetic"
reward = "rollart_hpc.reward_functions.arithmetic:score"
"""
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 47,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}
Execute = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Execute:
    """Runs the program here; gives its exit code and the lines on stderr."""

    def run(*arguments: object) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["rollart-hpc", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), capsys.readouterr().err.splitlines()
        return 0, capsys.readouterr().err.splitlines()

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config that is right, and all that it names."""
    save_tokenizer(tmp_path / "model", max_length=64)
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN3))
    save_file({"weight": np.zeros(4, np.float32)}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "run.toml").write_text(CONFIG.format(directory=tmp_path))
    return tmp_path / "run.toml"


@pytest.fixture
def not_a_run(tmp_path: Path) -> Path:
    """A directory of another kind, with a config.json of its own."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    return tmp_path / "other"


def test_the_right_config_is_right(execute: Execute, config: Path):
    assert execute("config", "check", config) == (0, [])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rollout.alhpa=1"], ["unknown key rollout.alhpa; did you mean 'alpha'?"]),
        (["bogus.x=1"], ["unknown key bogus; valid keys here: "]),
        (["run.steps=many"], ["run.steps = 'many': input should be a valid integer"]),
        (["run.steps=3.0"], ["run.steps = 3.0: input should be a valid integer"]),
        (["tasks=5"], ["tasks = 5: expected a section"]),
        (["tasks.a=5"], ["tasks.a = 5: expected a section"]),
        (["tasks.no name.weight=1"], ["tasks.no name", "tasks.no name.environment is missing", "tasks.no name.reward"]),
        (["rollout.alpha=-1", "run.stepz=1"], ["unknown key run.stepz", "rollout.alpha = -1"]),
        (["nonsense"], ["--set nonsense: expected key.path=value"]),
        (["=1"], ["--set =1: expected key.path=value"]),
        (["run..steps=1"], ["--set run..steps=1: expected key.path=value"]),
        (["run.steps.deep=1"], ["--set run.steps.deep=1: steps is a value, not a section"]),
        (["affinity.a=H100"], ["affinity.a = 'H100': no pool with generation workers has this hardware"]),
        (["affinity.b=cpu", "affinity.a=cpu"], ["affinity.b: no task has this tag"]),
        (["tasks.a.environment=no_such_module:E"], ["no module named 'no_such_module'"]),
        (["tasks.a.environment=rollart_hpc.envs.arithmetic:Arithmetik"], ["did you mean 'Arithmetic'?"]),
        (["tasks.a.environment=os.path:join"], ["expected an environment class"]),
        (
            ["tasks.a.reward=no_such_module:r", "tasks.a.environment=no_such_module:E"],
            ["tasks.a.environment = 'no_such_module:E'", "tasks.a.reward = 'no_such_module:r'"],
        ),
        (["tasks.a.reward=os:sep"], ["tasks.a.reward = 'os:sep': expected an async function"]),
        (["model.path=/no/such/model"], ["model.path = '/no/such/model': no such directory"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_every_fault_of_a_config_has_a_line(execute: Execute, config: Path, settings: list[str], said: list[str]):
    for command in (["run"], ["config", "check"]):
        code, lines = execute(*command, config, *(f"--set={setting}" for setting in settings))
        assert (code, len(lines)) == (2, len(said)), lines
        assert all(line.startswith("error: ") for line in lines)
        assert all(any(text in line for line in lines) for text in said), lines
    assert not (config.parent / "run").exists()


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_directory_that_lacks_a_file_is_refused_by_the_file_s_name(
    execute: Execute, config: Path, missing: str
):
    (config.parent / "model" / missing).unlink()
    code, lines = execute("run", config)
    assert code == 2
    assert [missing.replace("model.", "*.") in line for line in lines] == [True]


def test_a_user_module_that_raises_at_import_is_told_with_its_line(
    execute: Execute, config: Path, monkeypatch: pytest.MonkeyPatch
):
    (config.parent / "broken_rewards.py").write_text('\nraise ValueError("no luck")\n')
    monkeypatch.syspath_prepend(str(config.parent))
    code, lines = execute("config", "check", config, "--set=tasks.a.reward=broken_rewards:score")
    assert (code, len(lines)) == (2, 1), lines
    assert "raised ValueError: no luck" in lines[0]
    assert "broken_rewards.py:2" in lines[0]


def test_an_existing_run_directory_is_refused_with_what_to_do(execute: Execute, config: Path):
    (config.parent / "run").mkdir()
    code, (line,) = execute("run", config)
    assert code == 2
    assert f"exists already; go on with it by `rollart-hpc resume {config.parent}/run`" in line


@pytest.mark.parametrize(
    "path", ["absent.toml", "model", "model/model.safetensors.toml"], ids=["absent", "a directory", "bytes"]
)
def test_a_config_that_cannot_be_read_is_refused(execute: Execute, config: Path, path: str):
    (config.parent / "model" / "model.safetensors.toml").write_bytes(b"\xff\xfe")
    code, (line,) = execute("run", config.parent / path)
    assert code == 2
    assert path in line


@pytest.mark.parametrize("directory", ["other", "absent"])
@pytest.mark.parametrize(
    "command", [["ledger"], ["assess"], ["resume"], ["export", "--to=model"], ["ledger", "--json"]], ids=" ".join
)
def test_a_directory_that_is_no_run_is_refused(execute: Execute, not_a_run: Path, command: list[str], directory: str):
    code, (line,) = execute(*command, not_a_run.parent / directory)
    assert code == 2
    assert str(not_a_run.parent / directory) in line


@pytest.mark.parametrize("threshold", ["lake", "lake=", "lake=much", "=0.5", "lake=nan"])
def test_a_threshold_that_is_none_is_refused(execute: Execute, tmp_path: Path, threshold: str):
    code, (line,) = execute("assess", tmp_path, f"--success={threshold}")
    assert code == 2
    assert f"--success {threshold}: expected TASK=LEAST" in line


def test_a_run_without_a_checkpoint_is_not_exported(execute: Execute, config: Path):
    from rollart_hpc.config.load import load_config

    directory = create(load_config(config))
    code, (line,) = execute("export", directory, f"--to={config.parent}/exported")
    assert code == 2
    assert "no complete checkpoint" in line
    code, (line,) = execute("export", directory, "--step=7", f"--to={config.parent}/exported")
    assert code == 2
    assert "no complete checkpoint of step 7; there are []" in line


def test_a_resumed_run_s_settings_are_checked_like_new_ones(execute: Execute, config: Path):
    from rollart_hpc.config.load import load_config

    directory = create(load_config(config))
    code, (line,) = execute("resume", directory, "--set=run.steps=0")
    assert code == 2
    assert "run.steps = 0" in line
    assert read_config(directory).run.steps == 3
    assert not (directory / "attempts").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--role=actor_train", "--pool=p"], "--role actor_train: the trainer's layout (training.*) is settled"),
        (["--role=actor", "--pool=p"], "--role actor: expected one of actor_gen, environment, reward"),
        (["--role=reward", "--pool=a.b"], "--pool 'a.b': expected a letter and then letters, digits, _ or -"),
        (["--role=reward", "--pool=p", "--hardware= "], "--hardware ' ': expected a letter and then letters"),
        (["--role=reward", "--pool=p", "--workers=0"], "--workers 0: expected 1 or more"),
        (["--role=reward", "--pool=p"], "other: no run's directory, no run in runs/, and no job id"),
    ],
    ids=["trainer", "no role", "pool", "hardware", "workers", "no run"],
)
def test_what_can_never_join_is_refused(execute: Execute, not_a_run: Path, options: list[str], said: str):
    code, lines = execute("join", not_a_run, *options)
    assert (code, len(lines)) == (2, 1), lines
    assert said in lines[0]
