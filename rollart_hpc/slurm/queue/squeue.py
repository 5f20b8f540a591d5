"""The queue: one batched question for all of a user's jobs, and the end of one of them.

Job names are not asked for: they may hold anything, the separator included.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.queue.job_state import ComponentStatus, JobStatus, group_by_job, has_ended, parse_time, split_id

_SEPARATOR = "|"
_FIELDS = ("%i", "%A", "%T", "%S", "%P", "%N", "%r")
"""Id as 12+1, own number, state, start, partition, nodes; the reason is last, for it may be a sentence."""
_NO_REASON = "None"


def read_queue(user: str | None = None) -> dict[str, JobStatus]:
    """All jobs of ``user`` (this process's, when None) that Slurm's controller remembers, by the leader's id.

    Jobs that have ended are among them for some minutes (MinJobAge), so their end is known without accounting.

    Raises:
        NoSlurmError: there is no Slurm here, or its controller does not answer.
        SlurmError: squeue refused.
    """
    whose = str(os.getuid()) if user is None else user
    output = run_slurm(
        "squeue", "--noheader", f"--user={whose}", "--states=all", f"--format={_SEPARATOR.join(_FIELDS)}"
    )
    return parse_queue(output)


def parse_queue(output: str) -> dict[str, JobStatus]:
    """Jobs by id from what squeue printed for `read_queue`."""
    return group_by_job(_rows(output))


def _rows(output: str) -> Iterator[tuple[str, ComponentStatus]]:
    for line in output.splitlines():
        fields = line.split(_SEPARATOR, len(_FIELDS) - 1)
        if len(fields) != len(_FIELDS):
            continue
        job_id, number, state, start, partition, nodes, reason = (field.strip() for field in fields)
        leader, offset = split_id(job_id)
        yield (
            leader,
            ComponentStatus(
                offset=offset,
                job_id=number,
                state=state,
                partition=partition,
                nodes=nodes,
                start=parse_time(start),
                reason="" if reason == _NO_REASON else reason,
            ),
        )


def live_jobs(job_ids: Iterable[str]) -> list[str]:
    """Those of the jobs that wait or run, in the same order.

    Raises:
        NoSlurmError, SlurmError: as in `read_queue`.
    """
    queue = read_queue()
    return [job_id for job_id in job_ids if job_id in queue and not has_ended(queue[job_id].state)]


def cancel_job(job_id: str) -> None:
    """Ends a job, every component of it.

    Raises:
        SlurmError: it is a component's id (Slurm would end that component alone), has ended, or is not the user's.
    """
    require_live(job_id)
    run_slurm("scancel", job_id)


def require_live(job_id: str) -> JobStatus:
    """A job of this user that waits or runs.

    Raises:
        SlurmError: it is a component's id, has ended, or is not the user's.
    """
    leader, _ = split_id(job_id)
    jobs = read_queue()
    leader = leader_of(job_id, jobs) if leader == job_id else leader
    if leader not in (None, job_id):
        raise SlurmError(f"{job_id} is one component of job {leader}, which ends as a whole; cancel {leader}")
    job = jobs.get(job_id)
    if job is None:
        raise SlurmError(f"job {job_id} is not in your queue: it has ended, is another user's, or never was")
    if has_ended(job.state):
        raise SlurmError(f"job {job_id} has ended ({job.state}); there is nothing to cancel")
    return job


def leader_of(number: str, jobs: Mapping[str, JobStatus]) -> str | None:
    """The job that Slurm's own number of a component belongs to; None when it is of no job in the queue."""
    numbers = {component.job_id: job.job_id for job in jobs.values() for component in job.components}
    return number if number in jobs else numbers.get(number)
