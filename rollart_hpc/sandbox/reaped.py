"""Commands below a reaper (`reaper.py`): for enclosures that have no process namespace which this process could end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence

from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox import reaper
from rollart_hpc.sandbox.spawner import Process, spawner

NUM_OWN_TASKS = 1
"""The reaper."""
NO_FAILURE = -1


def start_reaped(
    argv: Sequence[str | bytes],
    *,
    limits: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    failure: int = NO_FAILURE,
) -> Process:
    """Starts a command below a reaper, with prlimit's ``limits``.

    Args:
        argv: program, by its absolute path, and arguments.
        limits: options of prlimit.
        environment: whole.
        descriptors: 0 to 2 of the command, and 3, the status of `Enclosure.start`.
        failure: the exit code by which the program says that it could not run the command.
    """
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        raise SandboxError("this node has no prlimit: install util-linux")
    return spawner().start(
        [
            *(sys.executable, "-I", "-S", reaper.__file__, str(os.getpid()), "3", str(failure)),
            *(prlimit, *limits, "--", *argv),
        ],
        descriptors=descriptors,
        environment=environment,
    )


def kill_reaped(process: Process) -> None:
    """Tells the reaper to end all."""
    os.kill(process.pid, signal.SIGTERM)


def reaped_processes(process: Process) -> list[str]:
    """The reaper and all below it."""
    import psutil

    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []
    return [f"/proc/{pid}" for pid in (process.pid, *(child.pid for child in below))]
