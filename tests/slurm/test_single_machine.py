import json
import multiprocessing
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rollart_hpc.errors import PreflightError, RollartError, SlurmError
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.single_machine import Cluster, ClusterOptions, read_cluster, start, start_cluster
from rollart_hpc.slurm.single_machine.leftovers import find_leftovers
from rollart_hpc.slurm.single_machine.options import node_names
from rollart_hpc.slurm.single_machine.ports import Ports, free_ports
from tests.slurm.waiting import wait_until

NO_ACCOUNTING = ClusterOptions(accounting=False)
STUBBORN_JOB = """#!/bin/sh
trap '' TERM
(setsid sleep 600 &)
echo $$ > {started}
while :; do sleep 1; done
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rollart_hpc.cli.main", "cluster", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def start_another(short_path: Path) -> Callable[..., Cluster]:
    """Starts further clusters; they are ended with the test."""

    def start_one(name: str = "another", options: ClusterOptions = NO_ACCOUNTING) -> Cluster:
        return start_cluster(short_path / name, options)

    return start_one


def names_of_leftovers(cluster: Cluster) -> set[str]:
    return {process.name for process in find_leftovers(cluster.slurm_conf)}


def start_stubborn_job(cluster: Cluster) -> None:
    """Starts a job that ignores TERM and has a process that has left its session."""
    started = cluster.directory / "started"
    script = cluster.directory / "job.sh"
    script.write_text(STUBBORN_JOB.format(started=started))
    cluster.run("sbatch", "--output=/dev/null", str(script))
    wait_until(started.exists, "the job to start")
    wait_until(lambda: "sleep" in names_of_leftovers(cluster), "its process that has left")


def test_all_nodes_are_idle_and_have_their_gpus(cluster: Cluster):
    gpus = {node.name: (node.state, node.gres) for node in cluster.nodes()}
    assert gpus == {
        "h800-1": ("idle", "gpu:h800:8"),
        "h800-2": ("idle", "gpu:h800:8"),
        "h20-1": ("idle", "gpu:h20:8"),
        "h20-2": ("idle", "gpu:h20:8"),
        "cpu-1": ("idle", ""),
        "cpu-2": ("idle", ""),
    }


def test_a_step_gets_the_gpus_it_asks_for(cluster: Cluster):
    show = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    shown = run_slurm("srun", "--partition=h800", "--nodelist=h800-2", "--gres=gpu:h800:3", "sh", "-c", show)
    assert shown.split() == ["h800-2", "0,1,2"]


def test_a_heterogeneous_job_runs_on_all_kinds_of_nodes(cluster: Cluster, tmp_path: Path):
    written = tmp_path / "nodes"
    blocks = [f"#SBATCH --partition={name}\n#SBATCH --mem=4G\n" for name in ("cpu", "h800", "h20")]
    script = "#!/bin/sh\n" + "#SBATCH hetjob\n".join(blocks)
    script += f"env | grep -o 'NODELIST_HET_GROUP_.=.*' | sort -u > {written}.new; mv {written}.new {written}\n"
    run_slurm("sbatch", "--output=/dev/null", text=script)
    wait_until(written.exists, "the job to write its nodes")
    nodes = [line.partition("=")[2].partition("-")[0] for line in written.read_text().splitlines()]
    assert nodes == ["cpu", "h800", "h20"]


def test_sacct_tells_how_a_job_ended(cluster: Cluster):
    with pytest.raises(SlurmError):
        run_slurm("srun", "--job-name=ends-with-3", "sh", "-c", "exit 3")

    def ends() -> list[str]:
        return run_slurm("sacct", "-nPX", "--name=ends-with-3", "--format=State,ExitCode").split()

    wait_until(lambda: ends() == ["FAILED|3:0"], "the job in sacct")


def test_an_urgent_job_preempts_with_notice(cluster: Cluster, tmp_path: Path):
    lines = tmp_path / "lines"
    body = f"#!/bin/sh\ntrap 'echo told >> {lines}; exit 0' USR2\necho runs >> {lines}\nsleep 600 & wait\n"
    whole = ("--nodes=2", "--gres=gpu:h20:8", "--output=/dev/null")
    run_slurm("sbatch", *whole, "--partition=h20", "--signal=B:USR2@60", text=body)
    wait_until(lambda: lines.exists() and "runs" in lines.read_text(), "the first job to run")
    run_slurm("sbatch", *whole, "--partition=h20-urgent", "--wrap=sleep 600")
    wait_until(lambda: "told" in lines.read_text(), "the notice")
    wait_until(lambda: run_slurm("squeue", "-h", "-t", "R", "-o", "%P").split() == ["h20-urgent"], "the urgent job")


def test_up_and_start_of_a_running_cluster_leave_it_alone(cluster: Cluster):
    again = command("up", str(cluster.directory), "--grace", "3")
    assert (again.returncode, again.stderr) == (0, "")
    assert "already up" in again.stdout and f"export SLURM_CONF={cluster.slurm_conf}" in again.stdout
    with pytest.raises(PreflightError, match="cluster down"):
        start_cluster(cluster.directory)
    assert read_cluster(cluster.directory) == cluster
    assert cluster.state() == "up"


def test_status_lists_daemons_and_nodes(cluster: Cluster):
    told = command("status", str(cluster.directory), "--json")
    report = json.loads(told.stdout)
    assert (told.returncode, report["state"]) == (0, "up")
    daemons = {daemon["name"] for daemon in report["daemons"] if daemon["alive"]}
    assert daemons == {"munged", "mariadbd", "slurmdbd", "slurmctld", *(f"slurmd.{node}" for node in node_names())}
    assert {node["name"]: node["state"] for node in report["nodes"]} == dict.fromkeys(node_names(), "idle")


def test_the_shell_is_led_to_the_cluster_and_its_exit_code_is_the_commands(cluster: Cluster):
    told = command("shell", str(cluster.directory), "--", "sh", "-c", "scontrol ping; echo $ROLLART_SITE; exit 7")
    assert told.returncode == 7
    assert "is UP" in told.stdout and told.stdout.endswith(f"{cluster.site_profile}\n")


def test_up_outlives_its_command_and_down_leaves_nothing(short_path: Path, cluster: Cluster):
    directory = short_path / "own"
    started = command("up", str(directory), "--no-accounting", "--kill-wait", "1")
    assert started.returncode == 0, started.stderr
    own = read_cluster(directory)
    assert own is not None and own.state() == "up"
    start_stubborn_job(own)
    assert cluster.run("squeue", "--noheader") == "", "the clusters have met"
    left = find_leftovers(own.slurm_conf)

    ended = command("down", str(directory))
    assert (ended.returncode, ended.stdout) == (0, f"{directory}: down\n")
    assert not [process for process in [*own.record.daemons, *left] if process.alive]
    assert not find_leftovers(own.slurm_conf)
    assert (directory / "log" / "slurmctld.log").exists()
    again = command("down", str(directory))
    assert (again.returncode, again.stdout) == (0, f"{directory}: nothing runs\n")
    assert command("status", str(directory)).returncode == 3
    assert command("shell", str(directory), "--", "true").returncode == 3
    assert cluster.state() == "up"


def test_stop_cleans_up_after_daemons_that_were_killed(start_another: Callable[..., Cluster]):
    broken = start_another()
    start_stubborn_job(broken)
    for name in ("slurmctld", "slurmd.cpu-1"):
        broken.record.daemon(name).send(signal.SIGKILL)
    wait_until(lambda: broken.state() == "partly", "the kill")
    left = find_leftovers(broken.slurm_conf)
    assert any(process.name.startswith("slurmstepd") for process in left)

    oddities = broken.stop()
    assert any("left behind" in oddity for oddity in oddities), oddities
    assert not [process for process in [*broken.record.daemons, *left] if process.alive]
    assert read_cluster(broken.directory) is None


def test_a_restarted_cluster_has_its_old_jobs_in_sacct_and_new_numbers(start_another: Callable[..., Cluster]):
    first = start_another("twice", ClusterOptions())
    first.run("srun", "true")
    assert first.stop() == []
    second = start_another("twice", ClusterOptions())
    assert second.run("sacct", "-nPX", "--jobs=1", "--format=JobID,State").split() == ["1|COMPLETED"]
    assert second.run("srun", "printenv", "SLURM_JOB_ID") == "2\n"
    assert second.record.daemon("slurmctld") != first.record.daemon("slurmctld")


@pytest.mark.parametrize("times_lost", [1, 3], ids=["once", "every time"])
def test_a_port_that_is_lost_is_replaced(
    times_lost: int, start_another: Callable[..., Cluster], short_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with socket.create_server(("", 0)) as taken:
        offered: list[Ports] = []

        def offer_ports() -> Ports:
            free = free_ports()
            lost = len(offered) < times_lost
            port = taken.getsockname()[1] if lost else free.slurmctld
            offered.append(Ports(slurmctld=port, slurmdbd=free.slurmdbd, nodes=free.nodes))
            return offered[-1]

        monkeypatch.setattr(start, "free_ports", offer_ports)
        if times_lost == 1:
            assert start_another().record.ports == offered[1]
            return
        with pytest.raises(SlurmError, match=r"(?s)slurmctld ended.*slurmctld\.out ends:.*Address already in use"):
            start_another()
    assert read_cluster(short_path / "another") is None
    assert not find_leftovers(short_path / "another" / "etc" / "slurm.conf")


def test_a_daemon_that_fails_takes_the_cluster_down_and_its_log_is_shown(
    start_another: Callable[..., Cluster], short_path: Path
):
    key = short_path / "another" / "munge" / "munge.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"short")
    with pytest.raises(SlurmError, match=r"(?s)munged ended.*munged\.out ends:.*munge\.key"):
        start_another()
    assert read_cluster(short_path / "another") is None


def processes_of(directory: Path) -> list[str]:
    """Command lines of the live processes that name the directory."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(directory) in line]


@pytest.mark.parametrize(
    "moment", ["munge.sock", "--bootstrap"], ids=["at its first daemon", "in the database's making"]
)
def test_up_that_is_asked_to_end_leaves_nothing(short_path: Path, moment: str):
    argv = [sys.executable, "-m", "rollart_hpc.cli.main", "cluster", "up", str(short_path / "own")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as starting:
        wait_until(lambda: read_cluster(short_path / "own"), "the first daemon")
        wait_until(lambda: any(moment in line for line in processes_of(short_path)), moment)
        started = read_cluster(short_path / "own")
        starting.terminate()
        assert starting.wait(60) == 128 + signal.SIGTERM
    assert processes_of(short_path) == []
    assert started is not None and started.state() == "down"
    assert read_cluster(short_path / "own") is None


def test_a_directory_with_foreign_letters_works(start_another: Callable[..., Cluster]):
    assert start_another("größe").run("srun", "printenv", "SLURM_CONF").endswith("größe/etc/slurm.conf\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests show it already")
def test_an_ordinary_user_can_have_a_cluster(short_path: Path):
    directory = short_path / "home"
    directory.mkdir(mode=0o700)
    ordinary = pwd.getpwnam("nobody")
    os.chown(directory, ordinary.pw_uid, ordinary.pw_gid)
    short_path.chmod(0o755)

    def use_a_cluster(told: "multiprocessing.Queue[str]") -> None:
        os.setgroups([])
        os.setgid(ordinary.pw_gid)
        os.setuid(ordinary.pw_uid)
        os.chdir(directory)
        try:
            own = start_cluster(directory / "cluster")
            told.put(own.run("srun", "--gres=gpu:h20:1", "--partition=h20", "id", "-un"))
            told.put(str(own.stop()))
        except RollartError as error:
            told.put(str(error))

    # Forked, because an ordinary user may not be allowed to read this interpreter.
    import jinja2  # noqa: F401

    context = multiprocessing.get_context("fork")
    told: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=use_a_cluster, args=(told,))
    child.start()
    try:
        assert [told.get(timeout=60), told.get(timeout=60)] == ["nobody\n", "[]"]
    finally:
        child.join(60)
