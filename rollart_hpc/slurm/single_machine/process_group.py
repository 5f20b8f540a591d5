"""Programs that run to their end while a cluster starts, in a process group of their own.

Invariant: when `run_to_end` is left, for whatever reason, no process of the group runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart_hpc.errors import SlurmError
from rollart_hpc.processes import enter_own_group
from rollart_hpc.slurm.single_machine.daemon import Daemon, signals_held, start_time

_KILL_GRACE_S = 10.0
_POLL_S = 0.02


def run_to_end(argv: Sequence[str], *, output: Path, environment: Mapping[str, str], deadline_s: float) -> int | None:
    """The exit code of ``argv``; None when it was still at work at the deadline. Output replaces the file ``output``.

    Raises:
        OSError: the program cannot run.
        SlurmError: a process of it could not be ended.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with output.open("wb") as file, signals_held():
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(environment),
                preexec_fn=enter_own_group,  # noqa: PLW1509 - it takes no lock
            )
        return process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process is not None:
            with signals_held():
                _kill_group(process)


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    """Kills again until none is left: a process may start another one before its turn comes."""
    deadline = time.monotonic() + _KILL_GRACE_S
    while left := _find_group(leader.pid):
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in left)
            raise SlurmError(f"{leader.args}: waited {_KILL_GRACE_S:g} s for the end of its processes, in vain: {pids}")
        for process in left:
            process.send(signal.SIGKILL)
        time.sleep(_POLL_S)
    leader.wait()


def _find_group(group: int) -> list[Daemon]:
    """The live processes of a group, whatever their parents are."""
    found: list[Daemon] = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        started = start_time(pid)
        if started is not None and _group_of(pid) == group:
            found.append(Daemon(name=str(pid), pid=pid, started=started))
    return found


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
