"""From what a user types to a run's directory; scontrol is a program of the test."""

import json
import os
import shlex
from pathlib import Path

import pytest

from rollart_hpc.config.site import apply_site
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher import find_run as module
from rollart_hpc.launcher.find_run import find_run, find_runs
from rollart_hpc.launcher.run_directory import create, record_job
from rollart_hpc.slurm.queue.job_state import ComponentStatus, JobStatus
from rollart_hpc.slurm.script.render import render
from tests.builders import run_config


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(directory: Path, *jobs: str) -> Path:
    config = run_config()
    create(config.model_copy(update={"run": config.run.model_copy(update={"directory": directory})}))
    for job in jobs:
        record_job(directory, job)
    return directory


def install_scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Knows one job, 77, with this batch script."""
    (folder / "script").write_text(script)
    program = folder / "scontrol"
    program.write_text(
        f'#!/bin/bash\n[ "$*" = "write batch_script 77 -" ] && exec cat {shlex.quote(str(folder / "script"))}\n'
        "echo 'job script retrieval failed: Invalid job id specified' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_directory_is_a_run_wherever_it_is(here: Path):
    elsewhere = make_run(here / "else where" / "größe")
    assert find_run(str(elsewhere)) == elsewhere
    assert find_run("else where/größe/") == elsewhere


def test_a_name_is_a_run_below_runs_also_one_that_looks_like_a_job(here: Path):
    lake, number = make_run(here / "runs" / "lake"), make_run(here / "runs" / "42")
    make_run(here / "runs" / "other", "42")
    assert find_run("lake") == lake
    assert find_run("42") == number


def test_a_job_is_the_run_that_has_it(here: Path):
    make_run(here / "runs" / "other", "3")
    run = make_run(here / "runs" / "lake", "11", "12")
    assert [find_run(text) for text in ("11", "12", "12+1")] == [run, run, run]


@pytest.mark.parametrize("text", ["nothing", "runs", "12x", "+1", "-7", ".", ""])
def test_what_names_nothing_is_refused_with_where_was_looked(here: Path, text: str):
    make_run(here / "runs" / "lake", "12")
    with pytest.raises(ConfigError, match=r"no run's directory, no run in runs/, and no job id; `rollart-hpc list`"):
        find_run(text)


def test_a_job_of_a_run_elsewhere_is_found_by_its_batch_script(here: Path, monkeypatch: pytest.MonkeyPatch):
    config = run_config()
    config = apply_site(
        config.model_copy(
            update={
                "run": config.run.model_copy(update={"directory": here / "far away"}),
                "slurm": config.slurm.model_copy(update={"setup": ["cat <<'EOF'", '{"run": 1}', "EOF"]}),
            }
        ),
        None,
    )
    script = render(config, python="/p", directory=here)
    assert "cat <<'EOF'" in script
    install_scontrol(here, monkeypatch, script)
    assert find_run("77") == find_run("77+2") == here / "far away"


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/bash\nsleep 60\n",
        "#!/bin/bash\ncat <<'EOF'\nhello\nEOF\n",
        "#!/bin/bash\ncat <<'EOF'\n[1]\nEOF\n",
        "#!/bin/bash\ncat <<'EOF'\n{\"run\": {}}\nEOF\n",
        "#!/bin/bash\ncat <<'EOF'\n{\"run\": 5}\n",
    ],
    ids=["no text", "no JSON", "a list", "no directory", "no end"],
)
def test_another_job_s_script_is_no_run(here: Path, monkeypatch: pytest.MonkeyPatch, script: str):
    install_scontrol(here, monkeypatch, script)
    with pytest.raises(ConfigError, match="job 77 is no run of rollart-hpc that Slurm still knows"):
        find_run("77")


def test_a_component_s_own_number_leads_to_its_job(here: Path, monkeypatch: pytest.MonkeyPatch):
    run = make_run(here / "runs" / "lake", "12")
    install_scontrol(here, monkeypatch, "#!/bin/bash\nsleep 60\n")
    part = ComponentStatus(offset=1, job_id="77", state="RUNNING")
    monkeypatch.setattr(module, "read_queue", lambda: {"12": JobStatus(job_id="12", components=(part,))})
    assert find_run("77") == run


def test_a_job_that_nobody_knows_is_refused_with_slurm_s_words(here: Path, monkeypatch: pytest.MonkeyPatch):
    install_scontrol(here, monkeypatch, "")
    with pytest.raises(
        ConfigError, match=r"job 5: no run in runs/ has it, and Slurm does not know it: .*Invalid job id"
    ):
        find_run("5")


def test_a_job_without_slurm_is_refused_too(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(here))
    with pytest.raises(ConfigError, match=r"job 5: .* scontrol is not on PATH"):
        find_run("5")


def test_runs_are_listed_by_name_and_nothing_else_is(here: Path):
    runs = [make_run(here / "runs" / name) for name in ("b", "a", "10")]
    (here / "runs" / "empty").mkdir()
    (here / "runs" / "file").write_text(json.dumps({}))
    assert find_runs(here / "runs") == sorted(runs)
    assert find_runs(here / "nowhere") == []
