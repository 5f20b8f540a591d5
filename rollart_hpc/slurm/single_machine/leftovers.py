"""Processes of a cluster that its daemons left behind: job steps survive their slurmd by design.

They are known by their environment: Slurm gives every process of a job the path of its own slurm.conf and the name
of the node, and every step daemon inherits the first. A user's shell has the path at most.
"""

from __future__ import annotations

import os
from pathlib import Path

from rollart_hpc.slurm.single_machine.daemon import Daemon, start_time

_STEP_DAEMON = "slurmstepd"


def find_leftovers(slurm_conf: Path) -> list[Daemon]:
    """Step daemons and processes of jobs that run under this configuration, whatever their parents are."""
    mark = b"SLURM_CONF=" + os.fsencode(slurm_conf)
    found: list[Daemon] = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        started = start_time(pid)
        if started is not None and pid != os.getpid() and _belongs(folder, mark):
            found.append(Daemon(name=_program(folder), pid=pid, started=started))
    return found


def _belongs(folder: Path, mark: bytes) -> bool:
    try:
        variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # ended meanwhile, or another user's
    if mark not in variables:
        return False
    in_a_job = any(variable.startswith(b"SLURMD_NODENAME=") for variable in variables)
    return in_a_job or _program(folder).startswith(_STEP_DAEMON)


def _program(folder: Path) -> str:
    try:
        return (folder / "exe").readlink().name
    except OSError:
        return ""
