import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart_hpc.errors import PreflightError
from rollart_hpc.slurm.commands import leaking_variables
from rollart_hpc.slurm.het_submitit import ComponentJob
from rollart_hpc.slurm.het_submitit.watcher import HetInfoWatcher
from rollart_hpc.slurm.queue.job_states import JobStates
from rollart_hpc.slurm.single_machine import Cluster, ClusterOptions, read_cluster, start_cluster
from rollart_hpc.slurm.single_machine.programs import find_programs
from tests.slurm.waiting import wait_until


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for sockets, unlike tmp_path's; clusters in it end with the test."""
    directory = Path(tempfile.mkdtemp(prefix="rollart-"))
    yield directory
    for record in directory.glob("*/cluster.json"):
        if running := read_cluster(record.parent):
            running.stop()
    shutil.rmtree(directory)


@pytest.fixture(scope="package")
def running_cluster() -> Iterator[Cluster]:
    """One cluster with accounting for all tests; it is ended with them."""
    try:
        find_programs(accounting=True)
    except PreflightError as error:
        pytest.skip(str(error))
    directory = Path(tempfile.mkdtemp(prefix="rollart-"))
    try:
        running = start_cluster(directory / "cluster")
        yield running
        running.stop()
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def cluster(running_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster of this session, in this process's environment; its jobs end with the test."""
    for name in leaking_variables():
        monkeypatch.delenv(name)
    for name, value in running_cluster.variables().items():
        monkeypatch.setenv(name, value)
    yield running_cluster
    running_cluster.run("scancel", f"--user={running_cluster.record.user}")
    wait_until(lambda: not running_cluster.run("squeue", "--noheader"), "the test's jobs to end")


@pytest.fixture
def lead_to(cluster: Cluster, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[ClusterOptions], None]:
    """Leads this process to a cluster of its own."""

    def lead_to_one(options: ClusterOptions) -> None:
        for name, value in start_cluster(short_path / "own", options).variables().items():
            monkeypatch.setenv(name, value)

    return lead_to_one


@pytest.fixture
def eager_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the watchers of jobs ask more often than users' may."""
    states = JobStates(interval_s=0.5, longest_interval_s=0.5)
    monkeypatch.setattr(ComponentJob, "watcher", HetInfoWatcher(states))
