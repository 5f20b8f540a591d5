"""Accounting: how jobs ended that the queue no longer shows. Many clusters have none, and nothing needs it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.queue.job_state import ComponentStatus, JobStatus, group_by_job, parse_time, split_id

_FIELDS = ("JobID", "JobIDRaw", "State", "Start", "Partition", "NodeList", "ExitCode")
_SIGNAL_BASE = 128
_OFF = "accounting storage is disabled"


def read_accounting(job_ids: Iterable[str]) -> dict[str, JobStatus] | None:
    """Those of ``job_ids`` that accounting has, by id; None when this cluster keeps none.

    Raises:
        NoSlurmError: accounting does not answer.
        SlurmError: sacct refused.
    """
    wanted = sorted(set(job_ids))
    if shutil.which("sacct") is None:
        return None
    if not wanted:
        return {}
    try:
        output = run_slurm(
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            f"--format={','.join(_FIELDS)}",
            "-j",
            ",".join(wanted),
        )
    except SlurmError as error:
        if _OFF in str(error):
            return None
        raise
    return parse_accounting(output)


def parse_accounting(output: str) -> dict[str, JobStatus]:
    """Jobs by id from what sacct printed for `read_accounting`."""
    return group_by_job(_rows(output))


def _rows(output: str) -> Iterator[tuple[str, ComponentStatus]]:
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) != len(_FIELDS):
            continue
        job_id, number, state, start, partition, nodes, code = fields
        leader, offset = split_id(job_id)
        word, _, rest = state.partition(" ")
        yield (
            leader,
            ComponentStatus(
                offset=offset,
                job_id=number,
                state=word,
                partition=partition,
                nodes="" if nodes == "None assigned" else nodes,
                start=parse_time(start),
                reason=rest,
                exit_code=_exit_code(code),
            ),
        )


def _exit_code(text: str) -> int | None:
    """``1:0`` is exit code 1, ``0:9`` the end by signal 9: 137, as a shell says it."""
    code, _, signal_number = text.partition(":")
    if not (code.isdecimal() and signal_number.isdecimal()):
        return None
    return int(code) or (int(signal_number) + _SIGNAL_BASE if int(signal_number) else 0)
