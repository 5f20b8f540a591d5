"""What Slurm's controller says about one job: its time, its restarts, and what is about to become of it.

More than squeue tells, asked for one job and seldom: by its leader at a notice, and about a job that does not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.doctor.scontrol_output import count, read_records, word
from rollart_hpc.slurm.queue.job_state import has_ended, parse_time

_TIME_LIMIT = "TimeLimit"


class Course(StrEnum):
    """What is becoming of a job that was told to end, by Slurm's account."""

    RUNS = "it runs"
    PREEMPTED = "it is preempted"
    """Within its grace, or already being ended; it comes back by itself only where Slurm requeues."""
    REQUEUED = "Slurm has put it back into the queue"
    HALVED = "Slurm has put only some of its components back into the queue"
    """After the failure of a node of any component but the last; as it is it never starts again."""
    TIME_UP = "its time limit is over"
    CANCELLED = "it was cancelled"
    UNKNOWN = "Slurm says nothing that is known here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentFacts:
    """One component of a job, or the whole of a job that has none."""

    state: str
    reason: str
    partition: str
    qos: str | None
    restarts: int
    """How often it was put back into the queue."""
    may_requeue: bool
    eligible: datetime | None
    """Since when, or from when on, it may start."""
    start: datetime | None
    end: datetime | None
    """When its time is over: that of its limit, or of the grace of a preemption."""
    is_preempted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job as of one moment."""

    job_id: str
    components: tuple[ComponentFacts, ...]
    """By offset; at least one."""

    @property
    def end(self) -> datetime | None:
        """When the first component's time is over; None without a limit."""
        return min((component.end for component in self.components if component.end is not None), default=None)

    @property
    def start(self) -> datetime | None:
        """When all of it has started."""
        return max((component.start for component in self.components if component.start is not None), default=None)

    @property
    def eligible(self) -> datetime | None:
        """Since when all of it may start; None as long as it waits for something else, such as another job."""
        times = [component.eligible for component in self.components]
        known = [at for at in times if at is not None]
        return max(known) if len(known) == len(times) else None

    @property
    def may_requeue(self) -> bool:
        """Whether Slurm allows it to be put back into the queue."""
        return all(component.may_requeue for component in self.components)

    @property
    def restarts(self) -> tuple[int, ...]:
        """By component."""
        return tuple(component.restarts for component in self.components)

    def course(self, restarts: tuple[int, ...]) -> Course:
        """What is becoming of it, seen by its leader.

        Args:
            restarts: by component, as they were when this leader began.
        """
        first = self.components[0]
        again = [now > then for now, then in zip(self.restarts, restarts, strict=False)]
        if any(again):
            return Course.REQUEUED if all(again) else Course.HALVED
        if any(component.is_preempted for component in self.components):
            return Course.PREEMPTED
        if first.state == "RUNNING":
            return Course.RUNS
        if first.reason == _TIME_LIMIT:
            return Course.TIME_UP
        return Course.CANCELLED if first.state == "COMPLETING" or has_ended(first.state) else Course.UNKNOWN


def read_job_facts(job_id: str) -> JobFacts:
    """The job with all its components.

    Raises:
        NoSlurmError: Slurm's controller does not answer.
        SlurmError: it does not know the job.
    """
    facts = parse_job_facts(job_id, run_slurm("scontrol", "show", "job", job_id, "--oneliner"))
    if not facts.components:
        raise SlurmError(f"scontrol showed nothing of job {job_id}")
    return facts


def parse_job_facts(job_id: str, text: str) -> JobFacts:
    """The job of ``scontrol show job --oneliner``."""
    return JobFacts(job_id=job_id, components=tuple(_components(text)))


def _components(text: str) -> Iterator[ComponentFacts]:
    records = list(read_records(text, "JobId"))
    for fields in sorted(records, key=lambda record: count(record, "HetJobOffset") or 0):
        yield ComponentFacts(
            state=fields.get("JobState", "UNKNOWN"),
            reason=word(fields, "Reason") or "",
            partition=fields.get("Partition", ""),
            qos=word(fields, "QOS"),
            restarts=count(fields, "Restarts") or 0,
            may_requeue=fields.get("Requeue") != "0",
            eligible=_time(fields, "EligibleTime"),
            start=_time(fields, "StartTime"),
            end=_time(fields, "EndTime"),
            is_preempted=_time(fields, "PreemptTime") is not None,
        )


def _time(fields: Mapping[str, str], key: str) -> datetime | None:
    return parse_time(fields.get(key, ""))
