"""How a run is: from its own files first, from Slurm's queue where they cannot know."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.attempt_log import AttemptRecord, read_attempts, read_events
from rollart_hpc.launcher.pool_status import PoolStatus, read_pools
from rollart_hpc.launcher.run_directory import chained_jobs, is_owned, jobs_of, read_config, read_jobs
from rollart_hpc.observe.metrics import read_metrics
from rollart_hpc.processes import tail
from rollart_hpc.slurm.queue.job_state import JobStatus
from rollart_hpc.slurm.queue.job_states import JobStates

_STARTED, _DONE = "started", "done"
OVER = frozenset({_DONE, "stopped", "cancelled", "failed", "lost"})
"""States in which nothing of a run goes on."""
_KILLED = {
    "CANCELLED": "cancelled",
    **dict.fromkeys(
        ("TIMEOUT", "DEADLINE", "FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "PREEMPTED"), "failed"
    ),
}
"""The state of a run whose leader was killed, by that of its job."""
_LAST_WORDS = 3
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its user wants to know it."""

    name: str
    directory: str
    state: str
    """queued, running, done, stopped, cancelled, failed, or lost: ended without a word."""
    attempt: int
    step: int
    """Optimizer steps done."""
    version: int
    """Of the trainer's weights: every step makes one."""
    steps: int
    success: dict[str, float | None]
    """By task, of the newest batch."""
    step_seconds: float | None
    """What the newest step took."""
    updated: float | None
    """When that step ended, seconds since the epoch."""
    first_step_s: float | None
    """From the submission of the newest job to the first step that it trained, the queue included."""
    job: str
    """Slurm's id; empty on one machine."""
    job_state: str
    reason: str
    """Why the job waits: as Slurm says, or what was done about a job that Slurm had forgotten."""
    expected_start: float | None
    """Seconds since the epoch, when Slurm says so."""
    next: str
    """How it goes on by itself, in words: of a run that was stopped, or whose attempt has failed."""
    cause: str
    """Why the last attempt failed."""
    pools: list[PoolStatus]


def read_status(directory: Path, states: JobStates, *, force: bool = False) -> RunStatus:
    """The state of a run; Slurm is asked when ``states`` finds it time, or now with ``force``.

    Raises:
        ConfigError: the directory holds no run.
    """
    config = read_config(directory)
    last, records = _last_attempt(directory), read_metrics(directory)
    jobs = _jobs(directory, last, states)
    job = _ask(states, jobs, last, force=force)
    newest: Mapping[str, Any] = records[-1] if records else {}
    state = _state(directory, last, jobs, job)
    waits = job is not None and state == "queued" and job.state in _WAITING
    return RunStatus(
        name=config.run.name,
        directory=str(directory),
        state=state,
        attempt=last.attempt if last is not None else 0,
        step=newest.get("step", 0),
        version=newest.get("step", 0),
        steps=_steps(directory, config),
        success={name: task["success"] for name, task in newest.get("tasks", {}).items()},
        step_seconds=newest.get("seconds", {}).get("step"),
        updated=newest.get("at"),
        first_step_s=_first_step_s(directory, records),
        job=job.job_id if job is not None else "",
        job_state=job.state if job is not None else "",
        reason=(job.reason or states.note(job.job_id)) if job is not None and waits else "",
        expected_start=job.start.timestamp() if job is not None and waits and job.start is not None else None,
        next=(_next(directory) or "") if state in ("queued", "running") else "",
        cause=_cause(directory, last, jobs, job) if state == "failed" else "",
        pools=read_pools(config, directory, last if state == "running" else None, job),
    )


def read_statuses(directories: Sequence[Path], states: JobStates) -> tuple[list[RunStatus], list[str]]:
    """The states of several runs, with one question to Slurm; and why others could not be read."""
    for directory in directories:
        for job_id in jobs_of(directory)[-1:]:
            states.watch(job_id)
    found: list[RunStatus] = []
    faults: list[str] = []
    for directory in directories:
        try:
            found.append(read_status(directory, states))
        except ConfigError as error:
            faults.append(str(error))
    return found, faults


def is_over(directory: Path, states: JobStates) -> bool:
    """Whether nothing of the run goes on any more; cheap, so that followers may ask often."""
    last = _last_attempt(directory)
    jobs = _jobs(directory, last, states)
    if last is not None and last.event == _DONE and _is_newest(last, jobs):
        return True
    return _state(directory, last, jobs, _ask(states, jobs, last)) in OVER


def _last_attempt(directory: Path) -> AttemptRecord | None:
    attempts = read_attempts(directory)
    return attempts[-1] if attempts else None


def _next(directory: Path) -> str | None:
    """What follows by itself on the newest attempt, empty for nothing; None when that is not known (yet)."""
    events = read_events(directory)
    if not events or events[-1].event not in ("next", "failed"):
        return None
    return events[-1].next


def _jobs(directory: Path, last: AttemptRecord | None, states: JobStates) -> dict[str, float]:
    """The run's jobs down to the one that counts: a job that waits for the leader's own is none yet."""
    jobs = read_jobs(directory)
    former = chained_jobs(directory).get(list(jobs)[-1]) if jobs else None
    if last is not None and last.job == former and last.event == _STARTED and not states.status(last.job).ended:
        jobs.popitem()
    return jobs


def _ask(
    states: JobStates, jobs: Mapping[str, float], last: AttemptRecord | None, *, force: bool = False
) -> JobStatus | None:
    """The newest job. What its leader has written since the last question makes Slurm's answer an old one."""
    return states.status(list(jobs)[-1], force=force, sign=last) if jobs else None


def _is_newest(last: AttemptRecord, jobs: Mapping[str, float]) -> bool:
    """Whether the newest attempt is of the newest job, or was begun on this machine after it."""
    if not jobs:
        return True
    job_id = list(jobs)[-1]
    return last.job == job_id or (not last.job and last.at > jobs[job_id])


def _state(directory: Path, last: AttemptRecord | None, jobs: Mapping[str, float], job: JobStatus | None) -> str:
    """The run's state; the newest job is the truth where the newest attempt is not of it."""
    attempt = last if last is not None and _is_newest(last, jobs) else None
    event = "" if attempt is None else attempt.event
    is_here = attempt is not None and not attempt.job
    if job is None or is_here:
        # After its end it may have been begun again a moment ago.
        return "running" if is_owned(directory) else "lost" if event in ("", _STARTED) else event
    if job.is_broken:
        return "failed"
    if not job.ended and (not event or (event != _DONE and job.state in _WAITING)):
        return "queued"  # for the first time, or again
    if event in ("", _STARTED) and (not job.ended or is_owned(directory)):
        return "running"
    if event in ("stopped", "failed") and not job.ended:
        return _between(event, _next(directory))
    return _after_job(last, event, job)


def _between(event: str, follows: str | None) -> str:
    """The state after an attempt's end while its job goes on: its leader sees to what follows."""
    if event == "stopped":
        return "running" if follows is None else "queued" if follows else event
    return "running" if follows else event


def _after_job(last: AttemptRecord | None, event: str, job: JobStatus) -> str:
    """The state after a job's end: its leader's last word; where that is missing, Slurm's."""
    if event == "stopped" and job.state == "CANCELLED":
        return "cancelled"
    if event not in ("", _STARTED):
        return event
    if not event and job.state == "COMPLETED":
        # It found nothing to do, or that it should not go on.
        return last.event if last is not None and last.event in (_DONE, "stopped") else "failed"
    return _KILLED.get(job.state, "lost" if event else "failed")


def _cause(directory: Path, last: AttemptRecord | None, jobs: Mapping[str, float], job: JobStatus | None) -> str:
    """Why the newest attempt or job failed: the leader's word, else Slurm's."""
    attempt = last if last is not None and _is_newest(last, jobs) else None
    if job is not None and job.is_broken:
        return (
            f"Slurm lost a node of job {job.job_id} and put only some of its components back into the queue: it will "
            "never start; `rollart-hpc submit` ends it and goes on with the run"
        )
    if attempt is not None and attempt.event != _STARTED:
        return attempt.cause
    if job is None:
        return ""
    if attempt is not None:
        return f"job {job.job_id} ended as {job.state}, its leader with it"
    words = tail(directory / f"slurm-{job.job_id}.out", _LAST_WORDS)
    return f"job {job.job_id} ended as {job.state} before its leader began an attempt\n{words}".rstrip()


def _steps(directory: Path, config: RunConfig) -> int:
    """Of the newest attempt, which may have been begun with others than the run."""
    try:
        return int(Attempt.read(directory / "attempts" / "latest" / "attempt.json").config["run"]["steps"])
    except (OSError, msgspec.MsgspecError, KeyError):
        return config.run.steps


def _first_step_s(directory: Path, records: Sequence[Mapping[str, Any]]) -> float | None:
    submitted = list(read_jobs(directory).values())
    trained = [record["at"] for record in records if "at" in record]
    return next((at - submitted[-1] for at in trained if at > submitted[-1]), None) if submitted else None


def age_s(status: RunStatus) -> float | None:
    """Seconds since the newest step ended."""
    return None if status.updated is None else max(0.0, time.time() - status.updated)
