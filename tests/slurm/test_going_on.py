"""What follows a stop, on a real Slurm: requeue, chain or nothing, at each kind of site."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollart_hpc.cli.main import app
from rollart_hpc.errors import SlurmError
from rollart_hpc.launcher.attempt_log import read_events
from rollart_hpc.launcher.run_directory import chained_jobs, create, jobs_of, record_job
from rollart_hpc.launcher.run_job import RunJob
from rollart_hpc.launcher.status import read_status
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.queue.job_facts import read_job_facts
from rollart_hpc.slurm.queue.job_states import JobStates
from rollart_hpc.slurm.queue.requeue import nudge_job
from rollart_hpc.slurm.queue.squeue import read_queue
from rollart_hpc.slurm.single_machine import Cluster, ClusterOptions
from tests.builders import run_config
from tests.slurm.waiting import wait_until

ROOT = Path(__file__).parents[2]
PARTS = ("cpu", "h800", "h20")
DEADLINE_S = 60.0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


def new_run(directory: Path, mode: str = "auto", notice_s: int = 5) -> Path:
    config = run_config()
    slurm = config.slurm.model_copy(update={"requeue": mode, "notice_s": notice_s})
    moved = config.run.model_copy(update={"directory": directory})
    return create(config.model_copy(update={"run": moved, "slurm": slurm}))


def submit(run: Path, *, saves_s: float = 0.0, options: str = "--requeue") -> str:
    """The stand-in as a job of three components; its id, when it leads."""
    block = f"#SBATCH --mem=2G\n#SBATCH --signal=B:USR2@60\n#SBATCH --time=10\n#SBATCH {options}\n"
    blocks = "#SBATCH hetjob\n".join(f"#SBATCH --partition={part}\n{block}" for part in PARTS)
    output = f"#SBATCH --output={run}/slurm-%j.out\n#SBATCH --open-mode=append\n#SBATCH --chdir={ROOT}\n"
    command = f"exec {sys.executable} -m tests.slurm.stand_in_leader {run} {saves_s}\n"
    job = run_slurm("sbatch", "--parsable", text=f"#!/bin/sh\n{output}{blocks}{command}").strip()
    record_job(run, job)
    wait_until(lambda: events(run, job) == ["started"], f"job {job} to lead", DEADLINE_S)
    return job


def events(run: Path, job: str) -> list[str]:
    return [record.event for record in read_events(run) if record.job == job]


def followed(run: Path) -> str:
    """What the continuation said."""
    return next((record.next for record in read_events(run) if record.event == "next"), "")


def preempt(seconds: int = 3) -> None:
    """Takes all nodes of the last component away for some seconds."""
    whole = ("--nodes=2", "--exclusive", "--gres=gpu:h20:8", "--output=/dev/null")
    run_slurm("sbatch", "--partition=h20-urgent", *whole, f"--wrap=sleep {seconds}")


def is_done(run: Path) -> bool:
    return bool(read_events(run)) and read_events(run)[-1].event == "done"


def wait_for_end(run: Path) -> None:
    wait_until(lambda: is_done(run), "the next attempt to be done", DEADLINE_S)


@contextmanager
def site(**settings: object) -> Generator[None]:
    """The partitions of the jobs with other settings, and with their own again."""
    before = {"GraceTime": 10, "PreemptMode": "REQUEUE"}
    try:
        for part in PARTS:
            run_slurm("scontrol", "update", f"partitionname={part}", *(f"{k}={v}" for k, v in settings.items()))
        yield
    finally:
        for part in PARTS:
            run_slurm("scontrol", "update", f"partitionname={part}", *(f"{k}={v}" for k, v in before.items()))


@pytest.mark.slow
def test_a_preempted_run_that_was_told_saves_and_is_requeued_once(cluster: Cluster, run: Path):
    job = submit(run, saves_s=1.0)
    preempt()
    wait_for_end(run)
    assert followed(run) == f"job {job} is requeued"
    assert events(run, job) == ["started", "stopped", "next", "started", "done"]
    assert read_job_facts(job).restarts == (1, 1, 1)
    assert jobs_of(run) == [job]


@pytest.mark.slow
def test_a_preempted_run_whose_workers_alone_are_told_is_requeued_once_though_term_comes_again(
    lead_to: Callable[[ClusterOptions], None], run: Path
):
    lead_to(ClusterOptions(accounting=False, user_signal=False, grace_s=10))
    job = submit(run, saves_s=1.0)
    preempt()
    wait_for_end(run)
    assert followed(run) == f"job {job} is requeued"
    assert read_job_facts(job).restarts == (1, 1, 1)


@pytest.mark.slow
def test_a_run_that_is_preempted_without_grace_comes_back_by_slurm_alone(cluster: Cluster, run: Path):
    with site(GraceTime=0):
        job = submit(run)
        preempt()
        wait_for_end(run)
    assert followed(run) == f"Slurm has requeued job {job}"
    assert read_job_facts(job).restarts == (1, 1, 1)
    assert jobs_of(run) == [job]


@pytest.mark.slow
@pytest.mark.parametrize(("grace_s", "saves_s"), [(10, 1.0), (0, 60.0)], ids=["in time", "killed before it has saved"])
def test_where_preempted_jobs_are_cancelled_another_job_goes_on(
    cluster: Cluster, run: Path, grace_s: int, saves_s: float
):
    with site(PreemptMode="CANCEL", GraceTime=grace_s):
        job = submit(run, saves_s=saves_s)
        preempt()
        wait_for_end(run)
    (chained,) = chained_jobs(run)
    assert chained_jobs(run) == {chained: job}
    assert jobs_of(run) == [job, chained]
    assert events(run, chained) == ["started", "done"]
    assert followed(run) == (f"job {chained} goes on after job {job}" if grace_s else "")
    states = JobStates()
    assert {states.status(job).state} <= {"PREEMPTED", "FAILED"}
    wait_until(lambda: states.status(chained, force=True).ended, "the end of the second job")
    status = read_status(run, states)
    assert (status.state, status.job) == ("done", chained)


def job_of(run: Path, job_id: str, monkeypatch: pytest.MonkeyPatch) -> RunJob:
    """The job of a run as its user has it, who asks more often."""
    job = RunJob(run / "slurm", job_id, components=dict.fromkeys(PARTS, 1))
    monkeypatch.setattr(job.watcher, "states", JobStates(interval_s=0.5, longest_interval_s=0.5))
    return job


@pytest.mark.slow
def test_a_run_whose_time_ends_stops_before_and_is_requeued_while_its_user_waits(
    cluster: Cluster, run: Path, monkeypatch: pytest.MonkeyPatch
):
    job = job_of(run, submit(run), monkeypatch)
    run_slurm("scontrol", "update", f"jobid={job.job_id}", "EndTime=now+10")
    job.wait()
    assert is_done(run)
    assert followed(run) == f"job {job.job_id} is requeued"
    assert read_job_facts(job.job_id).restarts == (1, 1, 1)


@pytest.mark.parametrize("command", [["cancel"], ["cancel", "--save"]], ids=["cancelled", "saved and ended"])
def test_what_its_user_ends_does_not_come_back(cluster: Cluster, run: Path, command: list[str]):
    job = submit(run)
    told = CliRunner().invoke(app, [*command, str(run)])
    assert told.exit_code == 0, told.output
    wait_until(lambda: read_queue()[job].ended, "the job's end")
    assert read_job_facts(job).restarts == (0, 0, 0)
    assert events(run, job) == ["started", "stopped", "next"]
    assert followed(run) == ""
    assert jobs_of(run) == [job]


@pytest.mark.slow
def test_a_chained_run_is_one_run_to_whoever_waits_for_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = new_run(tmp_path / "run", mode="chain")
    first = submit(run, saves_s=1.0)
    job = job_of(run, first, monkeypatch)
    run_slurm("scancel", "--batch", "--signal=USR2", first)
    job.wait()
    assert is_done(run)
    assert chained_jobs(run) == {job.job_id: first}
    assert job.state in ("COMPLETED", "COMPLETING")


@pytest.mark.slow
def test_a_chained_job_does_not_go_on_when_its_user_has_cancelled_the_first(cluster: Cluster, tmp_path: Path):
    run = new_run(tmp_path / "run", mode="chain")
    with site(PreemptMode="CANCEL", GraceTime=60):
        first = submit(run, saves_s=60.0)
        preempt()
        wait_until(lambda: chained_jobs(run), "the second job")
        (chained,) = chained_jobs(run)
        run_slurm("scancel", first)
        wait_until(lambda: read_queue()[chained].ended, "the second job's end", DEADLINE_S)
    assert events(run, chained) == []
    assert f"job {first}, which this one should follow, was cancelled" in (run / f"slurm-{chained}.out").read_text()
    assert read_queue()[chained].state == "COMPLETED"


def test_cancel_ends_the_job_that_would_go_on_too(cluster: Cluster, tmp_path: Path):
    run = new_run(tmp_path / "run", mode="chain")
    with site(PreemptMode="CANCEL", GraceTime=60):
        first = submit(run, saves_s=60.0)
        preempt()
        wait_until(lambda: chained_jobs(run), "the second job")
        (chained,) = chained_jobs(run)
        assert read_status(run, JobStates()).job == first
        told = CliRunner().invoke(app, ["cancel", str(run)])
        assert told.exit_code == 0, told.output
        wait_until(lambda: read_queue()[first].ended and read_queue()[chained].ended, "both jobs to end")
    assert read_queue()[chained].state == "CANCELLED"


@contextmanager
def lost(node: str) -> Generator[None]:
    """Slurm takes the node for lost, until the end of the block."""
    run_slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        yield
    finally:
        with suppress(SlurmError):  # it is back by itself
            run_slurm("scontrol", "update", f"nodename={node}", "state=resume")


def node_of(job: str, offset: int) -> str:
    component = read_queue()[job].component(offset)
    assert component is not None
    return component.nodes


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_run_that_loses_a_node_of_any_component_goes_on(cluster: Cluster, run: Path, offset: int):
    job = submit(run)
    with lost(node_of(job, offset)):
        wait_for_end(run)
    by_us = f"Slurm lost a node of job {job} and has requeued it"
    assert followed(run) == (by_us if offset < 2 else f"Slurm has requeued job {job}")
    assert read_job_facts(job).restarts == (1, 1, 1)


def test_half_a_job_is_put_back_whole_by_whoever_looks(cluster: Cluster, run: Path):
    body = "#!/bin/sh\n#SBATCH --output=/dev/null\n"
    body += "#SBATCH hetjob\n".join(f"#SBATCH --partition={part}\n#SBATCH --mem=2G\n" for part in PARTS)
    job = run_slurm("sbatch", "--parsable", text=f"{body}exec sleep 600\n").strip()
    record_job(run, job)
    wait_until(lambda: read_queue()[job].state == "RUNNING", "the job to run")
    with lost(node_of(job, 1)):
        wait_until(lambda: read_queue()[job].is_broken, "half of the job in the queue")
        states = JobStates()
        assert read_status(run, states).state == "queued"
        assert "the others were put back, too" in states.note(job)
        wait_until(lambda: read_queue()[job].state == "RUNNING", "the job to run again", DEADLINE_S)


def test_a_nudge_changes_nothing_about_the_job(cluster: Cluster):
    options = ("--hold", "--partition=cpu", "--requeue", "--comment=Requeue=0 says who?", "--output=/dev/null")
    job = run_slurm("sbatch", "--parsable", *options, "--wrap=true").strip()
    before = run_slurm("scontrol", "show", "job", job)
    nudge_job(job, may_requeue=read_job_facts(job).may_requeue)
    assert run_slurm("scontrol", "show", "job", job) == before
