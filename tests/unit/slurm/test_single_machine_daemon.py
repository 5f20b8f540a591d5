import os
import subprocess
import sys
from pathlib import Path

import msgspec

from rollart_hpc.slurm.single_machine.daemon import Daemon, end_daemons, start_daemon, start_time
from rollart_hpc.slurm.single_machine.leftovers import find_leftovers

IGNORES_TERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
)


def start(tmp_path: Path, *argv: str, **variables: str) -> tuple[Daemon, subprocess.Popen[bytes]]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return start_daemon("d", argv, output=tmp_path / "out", directory=tmp_path, environment=environment)


def test_a_daemon_has_a_session_of_its_own_and_writes_to_its_file(tmp_path: Path):
    daemon, process = start(tmp_path, "sh", "-c", "echo out; echo err >&2; pwd")
    assert process.wait(10) == 0
    assert (tmp_path / "out").read_text().split() == ["out", "err", str(tmp_path)]
    assert not daemon.alive
    sleeper, _ = start(tmp_path, "sleep", "60")
    assert os.getsid(sleeper.pid) == sleeper.pid
    assert end_daemons([sleeper], 10) == []


def test_a_process_that_got_the_id_of_a_recorded_one_is_not_touched(tmp_path: Path):
    daemon, process = start(tmp_path, "sleep", "60")
    stranger = msgspec.structs.replace(daemon, started=daemon.started - 1)
    assert not stranger.alive
    assert end_daemons([stranger], 0.1) == []
    assert process.poll() is None and daemon.alive
    assert end_daemons([daemon], 10) == []


def test_a_daemon_that_ignores_term_is_killed_and_reaped(tmp_path: Path):
    daemon, process = start(tmp_path, sys.executable, "-c", IGNORES_TERM)
    while "on" not in (tmp_path / "out").read_text():
        assert process.poll() is None
    assert end_daemons([daemon], 0.2) == [daemon]
    assert not Path(f"/proc/{daemon.pid}").exists()


def test_a_process_that_waits_to_be_reaped_is_not_alive():
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert start_time(process.pid) is None


def test_a_name_with_parentheses_and_spaces_hides_no_start_time(tmp_path: Path):
    program = tmp_path / "a ) b) Z"
    program.symlink_to("/bin/sleep")
    daemon, _ = start(tmp_path, str(program), "60")
    assert daemon.alive
    end_daemons([daemon], 10)


def test_processes_of_jobs_are_leftovers_and_a_users_shell_is_not(tmp_path: Path):
    conf = tmp_path / "slurm.conf"
    of_a_job, _ = start(tmp_path, "sleep", "60", SLURM_CONF=str(conf), SLURMD_NODENAME="cpu-1")
    shell, _ = start(tmp_path, "sleep", "60", SLURM_CONF=str(conf), SLURM_JOB_ID="1")
    elsewhere, _ = start(tmp_path, "sleep", "60", SLURM_CONF=f"{conf}2", SLURMD_NODENAME="cpu-1")
    try:
        found = find_leftovers(conf)
        assert [(process.pid, process.started) for process in found] == [(of_a_job.pid, of_a_job.started)]
    finally:
        end_daemons([of_a_job, shell, elsewhere], 10)
