"""Whole runs that are preempted on a real Slurm, at each kind of site: they end as if nothing had happened."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import rollart_hpc
from rollart_hpc.control_plane.audit import audit
from rollart_hpc.errors import SlurmError
from rollart_hpc.launcher.attempt_log import read_attempts, read_events
from rollart_hpc.launcher.chaos import compare_runs
from rollart_hpc.launcher.run_job import RunJob
from rollart_hpc.observe.metrics import read_metrics
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.single_machine import Cluster, ClusterOptions
from tests.slurm.waiting import wait_until
from tests.unbroken import ARITHMETIC, SETTINGS, STEPS

RUN_DEADLINE_S = 400.0
pytestmark = [pytest.mark.usefixtures("eager_watcher"), pytest.mark.slow, pytest.mark.timeout(900)]

Preempt = Callable[[], None]


def submit(directory: Path, model: Path) -> RunJob:
    own = (f"model.path={model}", f"run.directory={directory}")
    return rollart_hpc.submit(ARITHMETIC, overrides=[*SETTINGS, *own])


def interrupt(job: RunJob, how: Preempt) -> None:
    """Interrupts the run behind its second step, and waits until it is done."""
    run = job.run_directory
    wait_until(lambda: any(one["step"] >= 2 for one in read_metrics(run)), "step 2", RUN_DEADLINE_S)
    how()
    wait_until(lambda: len({one.attempt for one in read_attempts(run)}) > 1, "the next attempt", RUN_DEADLINE_S)
    assert job.result()["steps"] == STEPS


def urgent_job() -> None:
    whole = ("--nodes=2", "--exclusive", "--gres=gpu:h20:8", "--output=/dev/null")
    run_slurm("sbatch", "--partition=h20-urgent", *whole, "--wrap=sleep 3")


def lost_node() -> None:
    node = run_slurm("squeue", "--noheader", "--format=%N", "--partition=h20").split()[0]
    run_slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    with suppress(SlurmError):  # it may be back by itself
        run_slurm("scontrol", "update", f"nodename={node}", "state=resume")


def assert_as_if_nothing_had_happened(run: Path, unbroken: Path) -> None:
    assert audit(run).findings == ()
    assert compare_runs(run, unbroken) == []


def test_a_site_that_tells_the_batch_script(
    cluster: Cluster, arithmetic_model: Path, tmp_path: Path, unbroken_run: Path
):
    job = submit(tmp_path / "run", arithmetic_model)
    interrupt(job, urgent_job)
    assert_as_if_nothing_had_happened(job.run_directory, unbroken_run)
    (stopped,) = [one for one in read_events(job.run_directory) if one.event == "stopped"]
    assert stopped.saved_s is not None, stopped.cause


def test_a_site_that_tells_the_workers_alone(
    lead_to: Callable[[ClusterOptions], None], arithmetic_model: Path, tmp_path: Path, unbroken_run: Path
):
    lead_to(ClusterOptions(accounting=False, user_signal=False, grace_s=20))
    job = submit(tmp_path / "run", arithmetic_model)
    interrupt(job, urgent_job)
    assert_as_if_nothing_had_happened(job.run_directory, unbroken_run)
    (stopped,) = [one for one in read_events(job.run_directory) if one.event == "stopped"]
    assert stopped.saved_s is not None, stopped.cause


def test_a_site_that_gives_no_grace(
    lead_to: Callable[[ClusterOptions], None], arithmetic_model: Path, tmp_path: Path, unbroken_run: Path
):
    lead_to(ClusterOptions(accounting=False, user_signal=False, grace_s=0))
    job = submit(tmp_path / "run", arithmetic_model)
    interrupt(job, urgent_job)
    assert_as_if_nothing_had_happened(job.run_directory, unbroken_run)


def test_a_lost_node(cluster: Cluster, arithmetic_model: Path, tmp_path: Path, unbroken_run: Path):
    job = submit(tmp_path / "run", arithmetic_model)
    interrupt(job, lost_node)
    assert_as_if_nothing_had_happened(job.run_directory, unbroken_run)
