"""Whole runs as one heterogeneous job, on a real Slurm."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from submitit.core.utils import UncompletedJobError

import rollart_hpc
from rollart_hpc.bus.calls import call
from rollart_hpc.bus.codec import decode, encode
from rollart_hpc.bus.connection import Bus
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.launcher.attempt_log import MemberRecord, read_attempts, read_members
from rollart_hpc.launcher.run_directory import read_config
from rollart_hpc.launcher.run_job import RunJob
from rollart_hpc.observe.metrics import read_metrics, read_summary
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.queue.squeue import read_queue
from rollart_hpc.types import TagUsage
from tests.slurm.waiting import wait_until

ARITHMETIC = Path(__file__).parents[2] / "examples" / "arithmetic.toml"
RUN_DEADLINE_S = 300.0
pytestmark = [pytest.mark.usefixtures("cluster", "eager_watcher", "directory"), pytest.mark.timeout(900)]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the runs of a test are; no process of theirs outlives it by 30 s."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    wait_until(lambda: not processes_of(tmp_path), "the processes of the runs to end")


def processes_of(directory: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(directory) in word for word in process.info["cmdline"] or [])
    ]


def settings(model: Path, run: Path, **others: object) -> list[str]:
    values = {"model.path": model, "run.directory": run, "pools.h800.actor_gen": 1, **others}
    return [f"{key}={value}" for key, value in values.items()]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rollart_hpc.cli.main", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=RUN_DEADLINE_S, check=False)


def wait_for_step(run: Path, step: int) -> None:
    wait_until(lambda: any(one["step"] >= step for one in read_metrics(run)), f"step {step}", RUN_DEADLINE_S)


def started(job: RunJob) -> bool:
    """Whether the job has a leader that answers a notice."""
    return bool(read_attempts(job.run_directory))


@pytest.mark.slow
def test_a_run_is_one_job_of_three_components_that_learns_and_survives_a_killed_step(
    arithmetic_model: Path, directory: Path
):
    run = directory / "läufe, viele" / "run 1"
    sets = [f"--set={one}" for one in settings(arithmetic_model, run)]
    rendered = command("render", ARITHMETIC, *sets)
    assert rendered.returncode == 0, rendered.stderr

    submitted = command("submit", ARITHMETIC, *sets, "--no-probe")
    assert submitted.returncode == 0, submitted.stderr
    (job_id,) = [path.name.split("_")[0] for path in (run / "slurm").glob("*_submission.sh")]
    assert (run / "slurm" / f"{job_id}_submission.sh").read_text() == rendered.stdout
    # Slurm drops an empty line where a component's options end.
    kept = run_slurm("scontrol", "write", "batch_script", job_id, "-")
    assert [line for line in kept.splitlines() if line] == [line for line in rendered.stdout.splitlines() if line]
    assert [part.partition for part in read_queue()[job_id].components] == ["cpu", "h800", "h20"]

    wait_for_step(run, 4)
    generator = next(one for one in read_members(run, 1) if one.member_id == "actor_gen-1")
    os.kill(generator.pid, signal.SIGKILL)

    followed = command("logs", job_id, "--role", "leader", "--follow")
    assert followed.returncode == 0, followed.stderr
    assert "actor_gen-1 ended with killed by SIGKILL; starting it again" in followed.stdout
    summary = read_summary(run)
    task = summary["tasks"]["arithmetic"]
    assert task["success_first"] < 0.75
    assert task["success_last"] >= 0.85
    books = summary["trajectories"]
    assert books.pop("dispatched") == sum(books.values())
    assert summary["max_staleness_trained"] <= 1

    nodes = {(one.role, one.hardware, one.node.rpartition("-")[0]) for one in read_members(run, 1)}
    assert nodes == {
        ("actor_train", "H800", "h800"),
        ("actor_gen", "H800", "h800"),
        ("actor_gen", "H20", "h20"),
        ("environment", "cpu", "cpu"),
        ("reward", "cpu", "cpu"),
    }
    shown = json.loads(command("status", job_id, "--json").stdout)
    assert shown["state"] == "done"
    assert shown["job_state"] == "COMPLETED"
    assert 0 < shown["first_step_s"] < RUN_DEADLINE_S
    assert read_attempts(run)[-1].restarts == {"actor_gen-1": 1}


@pytest.mark.slow
def test_two_runs_at_once_do_not_meet_one_from_python_one_by_plain_sbatch_from_elsewhere(
    arithmetic_model: Path, directory: Path
):
    runs = [directory / name for name in ("one", "the other")]
    chosen = [settings(arithmetic_model, run, **{"run.steps": 3}) for run in runs]
    script = command("render", ARITHMETIC, *(f"--set={one}" for one in chosen[1]))
    (directory / "run.sh").write_text(script.stdout)
    job = rollart_hpc.submit(ARITHMETIC, overrides=chosen[0], check=False)
    other = run_slurm("sbatch", "--parsable", "--chdir=/", str(directory / "run.sh")).strip()

    assert list(job.components) == ["cpu", "h800", "h20"]
    summary = job.result()
    assert (summary["steps"], summary["trajectories"]["trained"]) == (3, 3 * 16 * 8)
    assert job.state == "COMPLETED"
    assert job.exception() is None
    assert str(runs[0]) in job.stdout()

    wait_until(lambda: read_queue()[other].state == "COMPLETED", "the other job's end", RUN_DEADLINE_S)
    assert read_summary(runs[1])["steps"] == 3
    assert (runs[1] / f"slurm-{other}.out").read_text().startswith("run arithmetic, attempt 1")
    assert read_config(runs[1]).tasks == read_config(runs[0]).tasks
    tokens = {json.loads((run / "attempts" / "1" / "attempt.json").read_text())["bus"]["token"] for run in runs}
    assert len(tokens) == 2
    done = command("submit", runs[1])
    assert (done.returncode, "nothing to do" in done.stderr) == (0, True)


def join(run: Path) -> str:
    """A generation worker that joins the run, in a plain job of its own; the job's id."""
    argv = shlex.join([sys.executable, "-m", "rollart_hpc.cli.main", "join", str(run)])
    wrapped = f"--wrap=exec {argv} --role=actor_gen --pool=h20"
    options = ("--partition=h20", "--mem=2G", f"--output={run}/join.out")
    return run_slurm("sbatch", "--parsable", *options, wrapped).strip()


def guests(run: Path) -> list[MemberRecord]:
    return [one for one in read_members(run, 2) if one.guest]


def num_requests(run: Path, member_id: str) -> int:
    """That the worker's engine has answered."""

    async def ask() -> dict[str, TagUsage]:
        bus = await Bus.connect(Attempt.read(run / "attempts" / "2" / "attempt.json").bus, "test")
        answer = await call(bus, member_id, "usage", encode(()), deadline_s=60)
        await bus.close()
        return decode(answer, dict[str, TagUsage])

    return sum(usage.num_requests for usage in asyncio.run(ask()).values())


@pytest.mark.slow
def test_a_run_is_saved_resumed_joined_left_cancelled_and_leaves_no_process(arithmetic_model: Path, directory: Path):
    run = directory / "run"
    overrides = settings(arithmetic_model, run, **{"run.steps": 500})
    job = rollart_hpc.submit(ARITHMETIC, overrides=overrides, check=False)
    again = command("submit", run)
    assert again.returncode == 2
    assert f"job {job.job_id} of this run is" in again.stderr or "goes on already" in again.stderr

    wait_for_step(run, 2)
    asked = command("cancel", run, "--save")
    assert asked.returncode == 0, asked.stderr
    with pytest.raises(UncompletedJobError, match="stopped in order and can be resumed"):
        job.result()
    saved = read_metrics(run)[-1]["step"]
    assert (run / "checkpoints" / f"step-{saved:06}" / "COMPLETE.json").exists()

    job = rollart_hpc.submit(run, check=False)
    wait_until(lambda: len(read_attempts(run)) == 3, "the next attempt", RUN_DEADLINE_S)
    joined = join(run)
    wait_until(lambda: guests(run), "the worker to join", RUN_DEADLINE_S)
    member_id = guests(run)[0].member_id
    assert member_id.startswith(f"actor_gen-j{joined}-h20-")
    wait_until(lambda: num_requests(run, member_id), "it to serve", RUN_DEADLINE_S)
    shown = json.loads(command("status", run, "--json").stdout)["pools"]
    assert [one["roles"][-1]["guests"] for one in shown if one["name"] == "h20"] == [1]
    # Told as by a notice: this cluster's scancel kills after 5 s, which busy cores may need.
    run_slurm("scancel", "--batch", "--signal=TERM", joined)
    wait_until(lambda: [one.event for one in guests(run)] == ["joined", "left"], "the worker to leave", 60)
    wait_until(lambda: f"{member_id} has left" in (run / "join.out").read_text(), "the worker's end", 60)
    wait_for_step(run, read_metrics(run)[-1]["step"] + 2)
    wait_until(lambda: command("cancel", job.job_id).returncode == 0, "the cancellation")
    wait_until(lambda: not processes_of(directory), "the processes to end", 30)
    assert job.exception() is not None
    wait_until(lambda: job.state not in ("RUNNING", "COMPLETING"), "the job's end")
    assert job.state == "CANCELLED"
    events = [one.event for one in read_attempts(run)]
    assert events in (["started", "stopped", "started", *end] for end in ([], ["stopped"]))  # as Slurm's kill comes
    assert json.loads(command("list", directory, "--json").stdout)[0]["state"] == "cancelled"
    held = command("ledger", run, "--check")
    assert held.returncode == 0, held.stderr
