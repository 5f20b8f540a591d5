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


def start_reaped(
    argv: Sequence[str | bytes],
    *,
    limits: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    is_namespace: bool = False,
) -> Process:
    """Starts a command below a reaper, with prlimit's ``limits``.

    Args:
        argv: program, by its absolute path, and arguments.
        limits: options of prlimit.
        environment: whole.
        descriptors: 0 to 2 of the command, and 3, the status of `Enclosure.start`.
        is_namespace: the program runs the command in a process namespace, where descriptor 3 is what the command
            writes to when it has begun.
    """
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        raise SandboxError("this node has no prlimit: install util-linux")
    return spawner().start(
        [
            *(
                sys.executable,
                "-I",
                "-S",
                reaper.__file__,
                str(os.getpid()),
                "3",
                "namespace" if is_namespace else "processes",
            ),
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
    return [f"/proc/{pid}" for pid in (process.pid, *_below(process.pid))]


def namespace_processes(process: Process) -> list[str]:
    """Those of the command's process namespace, its first process first; none before there is one."""
    for pid in _below(process.pid):
        if reaper.is_first_of_namespace(pid):
            return [f"/proc/{pid}", *(f"/proc/{below}" for below in _below(pid))]
    return []


def _below(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
