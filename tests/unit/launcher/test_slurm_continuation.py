"""What the leader of a job asks of Slurm at a stop; Slurm's commands are programs of the test."""

import json
import math
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rollart_hpc.launcher import slurm_continuation
from rollart_hpc.launcher.attempt_log import AttemptLog
from rollart_hpc.launcher.run_directory import ask_to_end, chained_jobs, create, forget_end
from rollart_hpc.launcher.slurm_continuation import SlurmContinuation
from rollart_hpc.slurm.allocated import AllocatedJob
from tests.builders import run_config

JOB = AllocatedJob(job_id="12", node="a1", nodes=(("a1",), ("b1",)), is_heterogeneous=True, restarts=0)
SCONTROL = """#!/bin/bash
cd {folder}
case "$1 $2" in
    "show job") [[ -e down ]] && {{ echo "Unable to contact slurm controller" >&2; rm down; exit 1; }}; cat job ;;
    "show config") echo "PreemptType = preempt/partition_prio" ;;
    "show partition")
        echo "PartitionName=p PreemptMode=$(cat mode)"
        echo "PartitionName=q PreemptMode=$(cat mode-of-q)" ;;
    "write batch_script") echo "the script" ;;
    *) echo "$@" >>said
        [[ -e after ]] && mv after job
        [[ ! -e refuses ]] || {{ echo "Access denied" >&2; exit 1; }} ;;
esac
"""
SBATCH = """#!/bin/bash
cd {folder}
cat >submitted
echo "sbatch $@" >>said
[[ ! -e full ]] || {{ echo "the queue is full" >&2; exit 1; }}
echo "13;cluster"
"""
NOW = datetime.now().replace(microsecond=0)


class Slurm:
    """A job as scontrol shows it, and what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "said").touch()
        self.preempted("REQUEUE")
        self.show("RUNNING", "RUNNING")

    def preempted(self, mode: str, mode_of_q: str = "REQUEUE") -> None:
        (self.folder / "mode").write_text(mode)
        (self.folder / "mode-of-q").write_text(mode_of_q)

    def show(self, *states: str, restarts: tuple[int, int] = (0, 0), more: str = "", name: str = "job") -> None:
        end = (NOW + timedelta(seconds=1000)).isoformat()
        lines = [
            f"JobId={12 + offset} HetJobOffset={offset} JobState={state} {more} Requeue=1 Restarts={restarts[offset]} "
            f"StartTime={NOW.isoformat()} EndTime={end} Partition={'pq'[offset]}"
            for offset, state in enumerate(states)
        ]
        (self.folder / name).write_text("\n".join(lines))

    def is_(self, what: str) -> None:
        (self.folder / what).touch()

    @property
    def said(self) -> list[str]:
        return (self.folder / "said").read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in (("scontrol", SCONTROL), ("sbatch", SBATCH)):
        (folder / name).write_text(body.format(folder=folder))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_continuation, "_PAUSE_S", 0.01)
    return Slurm(folder)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = run_config()
    return create(config.model_copy(update={"run": config.run.model_copy(update={"directory": tmp_path / "run"})}))


def continuation(run: Path, mode: str = "auto") -> SlurmContinuation:
    config = run_config()
    slurm = config.slurm.model_copy(update={"requeue": mode, "notice_s": 100})
    moved = config.run.model_copy(update={"directory": run})
    return SlurmContinuation(config.model_copy(update={"run": moved, "slurm": slurm}), JOB)


REQUEUE, CHAIN = "requeue 12", "sbatch --parsable --dependency=afterany:12"


@pytest.mark.parametrize(
    ("mode", "site", "at_notice", "after"),
    [
        ("auto", "REQUEUE", [], [REQUEUE]),
        ("auto", "CANCEL", [CHAIN], [CHAIN]),
        ("requeue", "CANCEL", [], [REQUEUE]),
        ("chain", "REQUEUE", [], [CHAIN]),
        ("none", "CANCEL", [], []),
    ],
)
def test_a_preempted_run_goes_on_as_the_site_and_its_user_want(
    slurm: Slurm, run: Path, mode: str, site: str, at_notice: list[str], after: list[str]
):
    slurm.preempted(site)
    going_on = continuation(run, mode)
    slurm.show("RUNNING", "RUNNING", more=f"PreemptTime={NOW.isoformat()}")
    for _ in range(3):
        going_on.noticed()
    assert slurm.said == at_notice
    said = {going_on.go_on() for _ in range(3)}
    assert slurm.said == after
    assert said == {{REQUEUE: "job 12 is requeued", CHAIN: "job 13 goes on after job 12"}[after[0]] if after else ""}
    assert chained_jobs(run) == ({"13": "12"} if after == [CHAIN] else {})


@pytest.mark.parametrize(
    ("modes", "follows"),
    [
        (("REQUEUE", "CANCEL"), "job 13 goes on after job 12"),
        (("GANG,CANCEL", "REQUEUE"), "job 13 goes on after job 12"),
        (("OFF", "CANCEL"), "job 12 is requeued"),
    ],
    ids=["one cancels", "among others", "one protects"],
)
def test_the_modes_of_all_partitions_count(slurm: Slurm, run: Path, modes: tuple[str, str], follows: str):
    slurm.preempted(*modes)
    assert continuation(run).go_on() == follows


def test_the_same_script_is_submitted_again_and_found_like_the_first(slurm: Slurm, run: Path):
    going_on = continuation(run, "chain")
    assert going_on.go_on()
    assert (slurm.folder / "submitted").read_text() == "the script\n"
    (run / "slurm").mkdir()
    (run / "slurm" / "12_submission.sh").write_text("as it was submitted")
    (run / "slurm" / "12_components.json").write_text(json.dumps({"a": 1}))
    assert continuation(run, "chain").go_on()
    assert (slurm.folder / "submitted").read_text() == "as it was submitted"
    assert {path.name for path in (run / "slurm").glob("13_*")} == {"13_submission.sh", "13_components.json"}


@pytest.mark.parametrize(
    ("states", "restarts", "more", "said", "follows"),
    [
        (("COMPLETING", "COMPLETING"), (1, 1), "", [], "Slurm has requeued job 12"),
        (("COMPLETING", "COMPLETING"), (0, 0), "", [], ""),
        (("CANCELLED", "CANCELLED"), (0, 0), "", [], ""),
        (("COMPLETING", "COMPLETING"), (0, 0), "Reason=TimeLimit", [CHAIN], "job 13 goes on after job 12"),
        (("DREAMING", "RUNNING"), (0, 0), "", [], ""),
    ],
    ids=["requeued by Slurm", "being cancelled", "cancelled", "time is up", "unheard of"],
)
def test_a_job_that_does_not_run_any_more_is_never_requeued(
    slurm: Slurm,
    run: Path,
    states: tuple[str, str],
    restarts: tuple[int, int],
    more: str,
    said: list[str],
    follows: str,
):
    going_on = continuation(run)
    slurm.show(*states, restarts=restarts, more=more)
    going_on.noticed()
    assert going_on.go_on() == follows
    assert slurm.said == said


def test_a_requeue_before_the_leader_had_begun_is_seen(slurm: Slurm, run: Path):
    slurm.show("COMPLETING", "COMPLETING", restarts=(1, 1))
    assert continuation(run).go_on() == "Slurm has requeued job 12"


@pytest.mark.parametrize("helps", [True, False])
def test_components_that_slurm_left_out_are_put_back(
    slurm: Slurm, run: Path, helps: bool, caplog: pytest.LogCaptureFixture
):
    going_on = continuation(run)
    slurm.show("COMPLETING", "RUNNING", restarts=(1, 0))
    slurm.is_("refuses")  # and yet does it
    if helps:
        slurm.show("COMPLETING", "COMPLETING", restarts=(1, 1), name="after")
    going_on.noticed()
    assert slurm.said == [REQUEUE]
    if helps:
        assert going_on.go_on() == "Slurm lost a node of job 12 and has requeued it"
    else:
        assert going_on.go_on() == ""
        assert f"left half of it in the queue; go on with: rollart-hpc submit {run}" in caplog.text


def test_what_cannot_be_requeued_is_chained_and_what_cannot_be_chained_is_its_user_s(
    slurm: Slurm, run: Path, caplog: pytest.LogCaptureFixture
):
    slurm.is_("refuses")
    assert continuation(run, "requeue").go_on() == ""
    assert "Access denied" in caplog.text
    assert continuation(run).go_on() == "job 13 goes on after job 12"
    slurm.is_("full")
    caplog.clear()
    assert continuation(run).go_on() == ""
    assert "the queue is full; go on with: rollart-hpc submit" in caplog.text


def test_a_job_that_cannot_be_recorded_is_not_submitted_twice(slurm: Slurm, run: Path):
    (run / "jobs.jsonl").mkdir()
    going_on = continuation(run, "chain")
    assert {going_on.go_on() for _ in range(2)} == {"job 13 goes on after job 12"}
    assert slurm.said == [CHAIN]


def test_a_controller_that_is_away_for_a_moment_is_asked_again(slurm: Slurm, run: Path):
    going_on = continuation(run)
    slurm.is_("down")
    assert going_on.go_on() == "job 12 is requeued"


def test_a_run_that_was_asked_to_end_does_not_go_on_until_it_starts_again(slurm: Slurm, run: Path):
    ask_to_end(run, "12")
    going_on = continuation(run)
    going_on.noticed()
    assert (going_on.go_on(), slurm.said) == ("", [])
    forget_end(run)
    assert continuation(run).go_on() == "job 12 is requeued"


def test_the_stop_begins_before_the_end_of_the_allocation_as_it_is_now(slurm: Slurm, run: Path):
    going_on = continuation(run)
    end = (NOW + timedelta(seconds=1000)).timestamp()
    assert going_on.stop_at() == end - 100
    (slurm.folder / "job").write_text("JobId=12 JobState=RUNNING EndTime=Unknown")
    assert going_on.stop_at() == math.inf
    slurm.show("RUNNING", "RUNNING")
    assert going_on.stop_at() == end - 100


@pytest.mark.parametrize(
    ("saved_s", "notice_s"), [(10.0, 100.0), (100.0, 160.0), (900.0, 500.0)], ids=["short", "longer", "too long"]
)
def test_the_notice_is_at_least_what_the_last_stop_took(slurm: Slurm, run: Path, saved_s: float, notice_s: float):
    (run / "attempts").mkdir()
    for seconds in (1.0, saved_s, None):
        AttemptLog(run, 1, job="11").write("saved", saved_s=seconds)
    assert continuation(run).stop_at() == (NOW + timedelta(seconds=1000)).timestamp() - notice_s
