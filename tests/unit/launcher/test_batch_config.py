"""What the batch script's leader reads and finds: its config, and a directory that may hold a run already."""

import fcntl
import threading
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import apply_site
from rollart_hpc.errors import ConfigError, PreflightError
from rollart_hpc.launcher import batch
from rollart_hpc.launcher.batch import follow_former, lead_job, read_embedded_config
from rollart_hpc.launcher.find_run import _EMBEDDED
from rollart_hpc.launcher.run_directory import (
    create,
    is_owned,
    is_run,
    open_or_create,
    owned,
    read_config,
)
from rollart_hpc.slurm.allocated import AllocatedJob
from rollart_hpc.slurm.script.render import render
from tests.builders import run_config


def config_in(directory: Path, *, task: dict[str, Any] | None = None, **sections: dict[str, Any]) -> RunConfig:
    config = run_config(tasks={"a": task or {}})
    changes = {"run": {"directory": directory}, **sections}
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    )


def test_the_config_of_a_rendered_script_comes_back_whole(tmp_path: Path):
    config = config_in(tmp_path / "größe", task={"environment_args": {"text": "it's <<'x'", "many": [1, 2.5]}})
    config = apply_site(config, None)
    embedded = _EMBEDDED.search(render(config, python="/p", directory=tmp_path))
    assert embedded is not None
    assert read_embedded_config(embedded["config"]) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the config on standard input is not valid JSON: .*; use the script that `rollart-hpc render` prints"),
        ('{"run": ', "is not valid JSON"),
        ("[1]", "the config on standard input"),
        ("{}", "the script's config: run is missing"),
        ('{"run": {"name": "r", "steps": 0}}', r"the script's config: run\.steps = 0"),
        ('{"zzz": 1}', "the script's config: unknown key zzz"),
    ],
    ids=["nothing", "torn", "a list", "empty", "a wrong value", "another version"],
)
def test_what_is_no_config_is_refused_as_wrong_input(text: str, said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        read_embedded_config(text)
    assert caught.value.exit_code == 2


def test_the_first_start_makes_the_run_and_the_next_one_finds_it(tmp_path: Path):
    config = config_in(tmp_path / "deep" / "run")
    assert [open_or_create(config) for _ in range(3)] == [None, {}, {}]
    assert read_config(tmp_path / "deep" / "run") == config


@pytest.mark.parametrize("name", ["slurm-12.out", ".config.json"])
def test_what_a_batch_script_leaves_before_there_is_a_run_is_in_nobody_s_way(tmp_path: Path, name: str):
    (tmp_path / name).write_text("{")
    assert open_or_create(config_in(tmp_path)) is None
    assert is_run(tmp_path)
    assert not (tmp_path / ".config.json").exists()


@pytest.mark.parametrize("name", ["results.csv", ".hidden", "attempts", "my-slurm-12.out"])
def test_a_directory_of_something_else_is_refused_and_left_as_it_was(tmp_path: Path, name: str):
    (tmp_path / "slurm-12.out").touch()
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match="is in use and holds no run; choose another"):
        open_or_create(config_in(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"slurm-12.out", name}


def test_another_run_is_refused_and_left_as_it_was(tmp_path: Path):
    create(config_in(tmp_path / "run"))
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="dtype = 'bfloat16', was 'float32'") as caught:
        open_or_create(config_in(tmp_path / "run", model={"dtype": "bfloat16"}))
    assert f"rollart-hpc submit {tmp_path / 'run'}" in str(caught.value)
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_a_run_goes_on_with_other_settings_which_are_told(tmp_path: Path):
    create(config_in(tmp_path / "run"))
    changed = config_in(tmp_path / "run", rollout={"alpha": 3}, slurm={"account": "x"})
    assert open_or_create(changed) == {"rollout.alpha": [None, 3]}


def test_a_leader_outside_a_job_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(PreflightError, match="no Slurm job's batch script"):
        lead_job(config_in(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_who_looks_does_not_keep_a_leader_out(tmp_path: Path):
    create(config_in(tmp_path / "run"))
    (tmp_path / "run" / ".lock").touch()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            is_owned(tmp_path / "run")

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(50):
            with owned(tmp_path / "run"):
                assert is_owned(tmp_path / "run")
    finally:
        is_over.set()
        for looker in lookers:
            looker.join()
    assert not is_owned(tmp_path / "run")


def test_who_looks_is_not_taken_for_a_leader(tmp_path: Path):
    run = create(config_in(tmp_path / "run"))
    with (run / ".lock").open("w") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        assert not is_owned(run)


def test_a_run_that_was_never_led_is_nobody_s(tmp_path: Path):
    run = create(config_in(tmp_path / "run"))
    assert not is_owned(run)
    assert not (run / ".lock").exists()


def test_a_leader_before_that_does_not_end_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch, "_FORMER_LEADER_S", 0.1)
    requeued = AllocatedJob(job_id="12", node="n", nodes=(("n",),), is_heterogeneous=False, restarts=1)
    with owned(tmp_path), pytest.raises(ConfigError, match=r"still holds the run's lock after 0\.1 s; see that it has"):
        follow_former(tmp_path, requeued)
    follow_former(tmp_path, requeued)
