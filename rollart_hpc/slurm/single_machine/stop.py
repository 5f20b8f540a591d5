"""The end of a cluster: jobs first, then the daemons in the reverse order of their dependence.

Invariant: the record is removed when nothing of the cluster runs any more, and not before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.single_machine.daemon import Daemon, end_daemons
from rollart_hpc.slurm.single_machine.layout import Layout
from rollart_hpc.slurm.single_machine.leftovers import find_leftovers
from rollart_hpc.slurm.single_machine.record import ClusterRecord

_DATABASE_GRACE_S = 30.0
_JOB_GRACE_S = 2.0
_LONGEST_CANCEL_S = 30
_POLL_S = 0.05
_SWEEPS = 3
"""A process of a job may start another one while it is being ended."""


def stop_daemons(
    layout: Layout, record: ClusterRecord, environment: Mapping[str, str], *, grace_s: float = 10.0
) -> list[str]:
    """Ends everything; ``environment`` leads Slurm's commands to the cluster. Returns what did not end in order.

    ``grace_s`` is what each of Slurm's daemons has for ending by itself.

    Raises:
        SlurmError: a process could not be ended; the record stays.
    """
    by_kind: dict[str, list[Daemon]] = {}
    for daemon in record.daemons:
        by_kind.setdefault(daemon.name.partition(".")[0], []).append(daemon)
    slurm = [*by_kind.get("slurmd", []), *by_kind.get("slurmctld", [])]
    oddities: list[str] = []
    if any(daemon.alive for daemon in by_kind.get("slurmctld", [])):
        oddities += _cancel_jobs(record, environment)
        # A slurmd that is asked to end waits for its steps.
        oddities += _end_leftovers(layout)
    killed = end_daemons(slurm, grace_s)
    oddities += _end_leftovers(layout)
    killed += end_daemons(by_kind.get("slurmdbd", []), grace_s)
    killed += end_daemons(by_kind.get("mariadbd", []), _DATABASE_GRACE_S)
    killed += end_daemons(by_kind.get("munged", []), grace_s)
    if immortal := [f"{daemon.name} (pid {daemon.pid})" for daemon in record.daemons if daemon.alive]:
        raise SlurmError(f"{layout.directory}: could not be ended even by SIGKILL: {', '.join(immortal)}")
    layout.record.unlink(missing_ok=True)
    return oddities + [f"{daemon.name} did not end by SIGTERM and was killed" for daemon in killed]


def _cancel_jobs(record: ClusterRecord, environment: Mapping[str, str]) -> list[str]:
    """Cancels the user's jobs and waits for their end, as long as Slurm gives them."""
    deadline_s = min(record.options.kill_wait_s, _LONGEST_CANCEL_S) + 3
    deadline = time.monotonic() + deadline_s
    try:
        run_slurm("scancel", f"--user={record.user}", deadline_s=deadline_s, environment=environment)
        while left := run_slurm("squeue", "--noheader", "--format=%i", deadline_s=deadline_s, environment=environment):
            if time.monotonic() > deadline:
                return [f"jobs did not end within {deadline_s} s and were killed: {', '.join(left.split())}"]
            time.sleep(_POLL_S)
    except SlurmError as error:
        return [f"jobs were not cancelled but killed: {error}"]
    return []


def _end_leftovers(layout: Layout) -> list[str]:
    names: list[str] = []
    for _ in range(_SWEEPS):
        left = find_leftovers(layout.slurm_conf)
        if not left:
            break
        names += [f"{process.name} (pid {process.pid})" for process in left]
        end_daemons(left, _JOB_GRACE_S)
    return [f"left behind by jobs and ended: {', '.join(names)}"] if names else []
