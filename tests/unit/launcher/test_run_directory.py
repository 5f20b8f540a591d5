import json
from pathlib import Path

import pytest

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.run_directory import create, next_attempt, owned, read_config
from tests.builders import run_config


def config_in(directory: Path, **task: object) -> RunConfig:
    config = run_config(tasks={"a": task})
    return config.model_copy(update={"run": config.run.model_copy(update={"directory": directory})})


def test_a_run_s_config_comes_back_whole(tmp_path: Path):
    config = config_in(
        tmp_path / "runs" / "größe 1", environment_args={"size": 4, "names": ["a", "é"]}, num_seeds=7, tag="lake"
    )
    assert read_config(create(config)) == config


def test_a_run_that_was_moved_is_where_it_is_now(tmp_path: Path):
    create(config_in(tmp_path / "old")).rename(tmp_path / "new")
    assert read_config(tmp_path / "new").run.path() == tmp_path / "new"


def test_an_existing_directory_is_refused_and_left_as_it_was(tmp_path: Path):
    directory = create(config_in(tmp_path / "run"))
    before = (directory / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="exists already; resume it or choose another"):
        create(config_in(directory, num_seeds=3))
    assert (directory / "config.json").read_bytes() == before


@pytest.mark.parametrize("path", ["file/run", "file/deep/run"])
def test_a_directory_that_cannot_be_made_is_refused_with_the_reason(tmp_path: Path, path: str):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"run'?: (Not a directory|File exists); choose another"):
        create(config_in(tmp_path / path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not a run's directory, it has no config.json"),
        ("", r"config\.json: not the config of a run"),
        ('{"run": ', r"config\.json: not the config of a run"),
        ("[]", r"config\.json: not the config of a run"),
        ('{"architectures": ["Qwen3ForCausalLM"]}', r"config\.json: not the config of a run"),
        ('{"run": "text"}', r"config\.json: not the config of a run"),
        ('{"run": {"name": "r", "steps": 0}}', r"config\.json: run\.steps = 0"),
    ],
    ids=["absent", "empty", "torn", "a list", "a model's", "no section", "wrong value"],
)
def test_what_is_no_run_is_refused(tmp_path: Path, text: str | None, said: str):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_config(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_key_of_another_version_is_named(tmp_path: Path):
    directory = create(config_in(tmp_path / "run"))
    data = json.loads((directory / "config.json").read_text())
    data["rollout"]["beta"] = 1
    (directory / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"unknown key rollout\.beta"):
        read_config(directory)


def test_the_kept_config_is_read_without_conversions(tmp_path: Path):
    data = json.loads((create(config_in(tmp_path / "run")) / "config.json").read_text())
    assert parse_config(data) == config_in(tmp_path / "run")


def test_one_owner_at_a_time_and_the_next_when_it_ends(tmp_path: Path):
    with pytest.raises(RuntimeError), owned(tmp_path):
        with pytest.raises(ConfigError, match="another process runs this"), owned(tmp_path):
            pass
        raise RuntimeError
    with owned(tmp_path):
        pass


def test_attempts_are_numbered_and_the_newest_is_linked(tmp_path: Path):
    assert [next_attempt(tmp_path) for _ in range(11)] == list(range(1, 12))
    assert (tmp_path / "attempts" / "latest").resolve().name == "11"


def test_what_is_no_attempt_does_not_count(tmp_path: Path):
    for name in ("3", "old-7", "12.bak"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    (tmp_path / "attempts" / ".latest").symlink_to("nowhere")
    assert next_attempt(tmp_path) == 4
