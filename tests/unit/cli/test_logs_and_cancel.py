"""logs and cancel as a user calls them; squeue and scancel are programs of the test."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rollart_hpc.cli.cancel import cancel
from rollart_hpc.cli.logs import logs
from rollart_hpc.errors import ConfigError, SlurmError
from rollart_hpc.launcher.attempt_log import AttemptLog
from rollart_hpc.launcher.run_directory import create, is_asked_to_end, next_attempt, record_job
from tests.builders import run_config

QUEUE = (
    "12+0|12|RUNNING|N/A|p|a1|None\\n12+1|13|RUNNING|N/A|p|b1|None\\n"
    "7|7|COMPLETED|N/A|p|a1|None\\n20|20|PENDING|N/A|p||Dependency\\n"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = run_config()
    return create(config.model_copy(update={"run": config.run.model_copy(update={"directory": tmp_path / "run"})}))


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What scancel was told, a line each time."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in (("squeue", f"printf '{QUEUE}'"), ("scancel", f'echo "$@" >>{tmp_path}/said')):
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (tmp_path / "said").touch()
    return tmp_path / "said"


def call(*arguments: object) -> Result:
    app = typer.Typer()
    app.command("logs")(logs)
    app.command("cancel")(cancel)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_log(run: Path, name: str, text: str) -> None:
    folder = run / "attempts" / "latest" / "logs"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.log").write_text(text)


def test_the_newest_job_of_a_run_is_cancelled_as_a_whole(run: Path, said: Path):
    record_job(run, "7")
    record_job(run, "12")
    result = call("cancel", run)
    assert result.exit_code == 0, result.output
    assert said.read_text() == "12\n"
    assert f"job 12 is cancelled; go on with the run later: rollart-hpc submit {run}" in result.output


def test_a_run_that_shall_save_first_gets_the_notice_and_is_not_cancelled(run: Path, said: Path):
    record_job(run, "12")
    result = call("cancel", run, "--save")
    assert said.read_text() == "--batch --signal=USR2 12\n"
    assert is_asked_to_end(run, "12")
    assert not is_asked_to_end(run, "13")
    assert f"rollart-hpc status {run} --watch" in result.output


def test_jobs_that_would_go_on_are_cancelled_first(run: Path, said: Path):
    for job in ("7", "12", "20"):
        record_job(run, job)
    assert call("cancel", run).exit_code == 0
    assert said.read_text() == "20\n12\n"


def test_a_run_that_saves_and_ends_loses_the_job_that_would_go_on(run: Path, said: Path):
    for job in ("12", "20"):
        record_job(run, job)
    assert call("cancel", run, "--save").exit_code == 0
    assert said.read_text() == "20\n--batch --signal=USR2 12\n"


def test_a_job_that_waits_is_not_asked_to_save(run: Path, said: Path):
    record_job(run, "20")
    result = call("cancel", run, "--save")
    assert "has nothing to save" in str(result.exception)
    assert not is_asked_to_end(run, "20")
    assert said.read_text() == ""


@pytest.mark.parametrize("job", ["7", "99"], ids=["ended", "gone"])
def test_a_job_that_is_over_is_not_cancelled(run: Path, said: Path, job: str):
    record_job(run, job)
    result = call("cancel", run)
    assert isinstance(result.exception, SlurmError)
    assert said.read_text() == ""


def test_a_run_on_this_machine_has_nothing_to_cancel(run: Path, said: Path):
    result = call("cancel", run)
    assert isinstance(result.exception, ConfigError)
    assert "ends with Ctrl-C where it was started" in str(result.exception)
    assert said.read_text() == ""


def test_logs_are_chosen_by_role_attempt_and_number_of_lines(run: Path):
    next_attempt(run)
    write_log(run, "reward-0", "1\n2\n3\n")
    write_log(run, "nats-server", "n\n")
    next_attempt(run)
    write_log(run, "reward-0", "4\n")
    assert call("logs", run).output == "4\n"
    assert call("logs", run, "--attempt", 1, "-n", 2).output == "nats-server | n\nreward-0 | 2\nreward-0 | 3\n"
    assert call("logs", run, "--attempt", 1, "--role", "reward", "-n", 1).output == "3\n"
    assert call("logs", run, "-n", 0).output == ""
    assert isinstance(call("logs", run, "--role", "actor_gen").exception, ConfigError)


def test_followed_logs_end_with_the_run(run: Path):
    log = AttemptLog(run, next_attempt(run))
    write_log(run, "controller", "begun\n")
    log.write("started")
    log.write("done")
    result = call("logs", run, "-f")
    assert (result.exit_code, result.output) == (0, "begun\n")
