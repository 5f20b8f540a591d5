"""The states of a job: which of them are final, and what those of its components come to.

Slurm's words are kept as they are. A state that is not known here counts as unfinished and is shown as it is: a newer
Slurm never ends a wait, and never a program.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

UNKNOWN = "UNKNOWN"
"""Nobody has said anything about the job yet."""
VANISHED = "VANISHED"
"""The job left the queue and nothing says how it ended: no accounting here, or not for this job. It is over."""

_UNFINISHED = (
    UNKNOWN,
    "REVOKED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "REQUEUE_FED",
    "REQUEUED",
    "PENDING",
    "CONFIGURING",
    "POWER_UP_NODE",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "RESIZING",
    "STAGE_OUT",
    "RUNNING",
    "COMPLETING",
)
_ENDED = (
    "NODE_FAIL",
    "BOOT_FAIL",
    "LAUNCH_FAILED",
    "OUT_OF_MEMORY",
    "FAILED",
    "DEADLINE",
    "TIMEOUT",
    "PREEMPTED",
    "CANCELLED",
    VANISHED,
    "COMPLETED",
)
_RANKS = {state: rank for rank, state in enumerate((*_UNFINISHED, *_ENDED))}


def has_ended(state: str) -> bool:
    """Whether a job in this state is over."""
    return state in _ENDED


def fold_states(states: Iterable[str]) -> str:
    """The state of the whole: the least advanced of those that are unfinished, else the worst; UNKNOWN for none."""
    return min(states, key=lambda state: _RANKS.get(state, -1), default=UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """One component of a job, or the whole of a job that has none."""

    offset: int
    """Its place in the het job: the k of ``12+k``."""
    job_id: str
    """Slurm's own number of it; the leader's for the first one."""
    state: str
    partition: str = ""
    nodes: str = ""
    """Host list as Slurm writes it; empty before it starts."""
    start: datetime | None = None
    """When it started, or is expected to."""
    reason: str = ""
    """Why it waits, or why it ended."""
    exit_code: int | None = None
    """Of the batch script; from accounting alone, so None while it is in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as its user knows it: one id, all components."""

    job_id: str
    components: tuple[ComponentStatus, ...] = ()
    """By offset; empty while nothing is known."""

    @property
    def state(self) -> str:
        """Of the whole job; see `fold_states`."""
        return fold_states(component.state for component in self.components)

    @property
    def ended(self) -> bool:
        """Whether all of it is over."""
        return has_ended(self.state)

    @property
    def is_broken(self) -> bool:
        """Whether it waits for ever: Slurm has ended a component and put the first one back into the queue.

        Slurm 22.05 does so when it loses a node of a component in the middle.
        """
        first = self.component(0)
        waits = first is not None and first.state == "PENDING"
        return waits and any(has_ended(component.state) for component in self.components)

    @property
    def reason(self) -> str:
        """Why it waits: the first component's that says one."""
        return next((component.reason for component in self.components if component.reason), "")

    @property
    def start(self) -> datetime | None:
        """When all of it has started or is expected to; None as long as Slurm does not say so for every component."""
        starts = [component.start for component in self.components]
        known = [start for start in starts if start is not None]
        return max(known) if known and len(known) == len(starts) else None

    @property
    def nodes(self) -> str:
        """Host lists of all components, by commas."""
        return ",".join(component.nodes for component in self.components if component.nodes)

    @property
    def exit_code(self) -> int | None:
        """Of the batch script, when accounting knows it."""
        return self.components[0].exit_code if self.components else None

    def component(self, offset: int) -> ComponentStatus | None:
        """The component at ``offset``; None while nothing is known of it."""
        return next((component for component in self.components if component.offset == offset), None)


def split_id(job_id: str) -> tuple[str, int]:
    """``12+1`` is component 1 of job 12; ``12`` and ``12_3`` are their own first component."""
    leader, plus, offset = job_id.partition("+")
    return (leader, int(offset)) if plus and offset.isdecimal() else (job_id, 0)


def group_by_job(rows: Iterable[tuple[str, ComponentStatus]]) -> dict[str, JobStatus]:
    """Jobs by id from their components, in any order."""
    found: dict[str, list[ComponentStatus]] = {}
    for job_id, component in rows:
        found.setdefault(job_id, []).append(component)
    return {
        job_id: JobStatus(job_id=job_id, components=tuple(sorted(components, key=lambda component: component.offset)))
        for job_id, components in found.items()
    }


def parse_time(text: str) -> datetime | None:
    """A time as squeue and sacct print it, in this machine's zone; None for N/A and the like."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
