"""What remains of attempts: RUN/attempts.jsonl (what happened) and RUN/attempts/N/members.jsonl (who was where).

Both are append-only, one JSON object a line, and written by the leader alone. A record that a full disk refuses is
lost, with a warning: no attempt fails of it.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.bus.membership import Member
from rollart_hpc.launcher.json_lines import append_record, read_records

_log = logging.getLogger(__name__)
_ATTEMPTS = "attempts.jsonl"
_MEMBERS = "members.jsonl"


STARTS_AND_ENDS = frozenset({"started", "done", "stopped", "failed"})
GIVEN_UP = "given_up"


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened in an attempt."""

    attempt: int
    event: str
    """A start or an end: started, done, stopped or failed. Or on the way: noticed (it was told to stop),
    first_step (its first step is trained), given_up (a worker; the run goes on without it), saved (it has stopped, its
    processes end), next (after stopped)."""
    at: float
    """Seconds since the epoch."""
    job: str = ""
    """Slurm's id of the job, of its first component; empty on one machine."""
    node: str = ""
    """Of the leader."""
    cause: str = ""
    """Why it failed, or a worker was given up, or who was told to stop and how; of a stop that saved nothing, why."""
    restarts: dict[str, int] = {}
    """Workers and services that were started again, and how often."""
    requeues: int = 0
    """Of a start: how often Slurm has started the job again (SLURM_RESTART_COUNT)."""
    by_user: bool = False
    """Of a start: the user asked for it; earlier failures do not count."""
    changes: dict[str, list[Any]] = {}
    """Of a start: config keys that differ from the run's, old and new value."""
    step: int = 0
    """Of a failure: the newest trained step."""
    saved_s: float | None = None
    """Of a stop: from the notice until everything was saved; None when it could not be."""
    first_step_s: float | None = None
    """From the start of the attempt to its first trained step."""
    next: str = ""
    """What follows by itself, in words: after a failure another attempt, after a stop what Slurm was asked for."""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that joined or left."""

    at: float
    event: str
    """joined or left."""
    member_id: str
    role: str
    hardware: str
    node: str
    """As Slurm knows it (SLURMD_NODENAME), else the host's name."""
    pid: int
    rank: int
    pool: str = ""
    guest: bool = False
    """It joined the running run."""


class AttemptLog:
    """The leader's records of one attempt."""

    def __init__(self, run_directory: Path, number: int, *, job: str = "", node: str = "") -> None:
        self._attempts = run_directory / _ATTEMPTS
        self._members = run_directory / "attempts" / str(number) / _MEMBERS
        self.number, self._job, self._node = number, job, node

    def write(self, event: str, **details: Any) -> None:
        """Records that something happened; ``details`` are fields of `AttemptRecord`."""
        record = AttemptRecord(
            attempt=self.number, event=event, at=time.time(), job=self._job, node=self._node, **details
        )
        _append(self._attempts, record)

    def member_changed(self, before: Member | None, after: Member | None) -> None:
        """A listener for the member view: records joins and ends."""
        for event, member, other in (("left", before, after), ("joined", after, before)):
            if member is not None and (other is None or other.incarnation != member.incarnation):
                self._write_member(event, member)

    def _write_member(self, event: str, member: Member) -> None:
        record = MemberRecord(
            at=time.time(),
            event=event,
            member_id=member.member_id,
            role=str(member.role),
            hardware=member.hardware,
            node=member.node,
            pid=member.pid,
            rank=member.rank,
            pool=member.pool,
            guest=member.guest,
        )
        _append(self._members, record)


def _append(path: Path, record: msgspec.Struct) -> None:
    try:
        append_record(path, record)
    except OSError as error:
        _log.warning("%s: a record could not be written and is lost: %s", path, error)


def read_attempts(run_directory: Path) -> list[AttemptRecord]:
    """Starts and ends in order; lines that are no records are left out."""
    return [record for record in read_events(run_directory) if record.event in STARTS_AND_ENDS]


def read_events(run_directory: Path) -> list[AttemptRecord]:
    """Everything that happened, in order; lines that are no records are left out."""
    return read_records(run_directory / _ATTEMPTS, AttemptRecord)


def read_members(run_directory: Path, attempt: int) -> list[MemberRecord]:
    """Joins and ends of an attempt's workers in order."""
    return read_records(run_directory / "attempts" / str(attempt) / _MEMBERS, MemberRecord)
