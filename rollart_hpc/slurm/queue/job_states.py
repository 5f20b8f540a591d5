"""What became of jobs, for whoever waits for them: the one place that polls Slurm.

Consumes: squeue for all jobs at once, sacct for those that left the queue. Produces: a `JobStatus` for each job that
was asked about. A question goes to Slurm at most every 30 s, and less often, up to every 2 min, as long as nothing
changes; everything in between is answered from memory. What has ended is never asked about again. A watched job that
Slurm has forgotten in the queue is helped (`rollart_hpc.slurm.queue.job_care`).

A job that is neither in the queue nor in accounting for 15 s is VANISHED, which counts as ended: nobody waits for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.queue.accounting import read_accounting
from rollart_hpc.slurm.queue.job_care import JobCare
from rollart_hpc.slurm.queue.job_state import VANISHED, ComponentStatus, JobStatus
from rollart_hpc.slurm.queue.squeue import read_queue

_log = logging.getLogger(__name__)


class JobStates:
    """The states of the jobs that are watched."""

    def __init__(
        self,
        *,
        interval_s: float = 30.0,
        longest_interval_s: float = 120.0,
        vanished_after_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        queue: Callable[[], dict[str, JobStatus]] = read_queue,
        accounting: Callable[[Iterable[str]], dict[str, JobStatus] | None] = read_accounting,
        look_after: Callable[[JobStatus], str] | None = None,
    ) -> None:
        self._interval_s = interval_s
        self._longest_interval_s = longest_interval_s
        self._vanished_after_s = vanished_after_s
        self._clock = clock
        self._read_queue = queue
        self._read_accounting = accounting
        self._look_after = look_after or JobCare().look_after
        self._accounting_is_on = True
        self._jobs: dict[str, JobStatus] = {}
        self._missing_since: dict[str, float] = {}
        self._signs: dict[str, object] = {}
        self._notes: dict[str, str] = {}
        self._pause_s = interval_s
        self._due_s = float("-inf")
        self.num_queries = 0

    def watch(self, job_id: str, *, state: str | None = None) -> None:
        """Adds a job; ``state`` is what the caller knows for sure, such as PENDING of one that was just submitted."""
        if state is None:
            self._jobs.setdefault(job_id, JobStatus(job_id=job_id))
            return
        submitted = ComponentStatus(offset=0, job_id=job_id, state=state)
        self._jobs[job_id] = JobStatus(job_id=job_id, components=(submitted,))

    def status(self, job_id: str, *, force: bool = False, sign: object = None) -> JobStatus:
        """The job as it is known; Slurm is asked when it is due, or now with ``force``.

        ``sign`` is what the caller knows of the job from elsewhere: Slurm is asked at once when it is another than at
        the last question.
        """
        self.watch(job_id)
        is_news = self._signs.setdefault(job_id, sign) != sign
        self._signs[job_id] = sign
        if not self._jobs[job_id].ended and (force or is_news or self._clock() >= self._due_s):
            self.refresh()
        return self._jobs[job_id]

    def known(self, job_id: str) -> JobStatus:
        """The job as it was when Slurm was last asked."""
        return self._jobs.get(job_id, JobStatus(job_id=job_id))

    def note(self, job_id: str) -> str:
        """What was done for a job that Slurm had forgotten in the queue; empty when nothing, or when it goes on."""
        return self._notes.get(job_id, "")

    def refresh(self) -> None:
        """Asks Slurm about all watched jobs that have not ended; a Slurm that does not answer is asked again later."""
        before = {job_id: job for job_id, job in self._jobs.items() if not job.ended}
        if not before:
            return
        self.num_queries += 1
        try:
            queue = self._read_queue()
            if self._help({job_id: queue[job_id] for job_id in before if job_id in queue}):
                queue = self._read_queue()
        except SlurmError as error:
            _log.warning("the queue could not be read, the states of jobs are old: %s", error)
        else:
            gone = before.keys() - queue.keys()
            self._jobs.update({job_id: queue[job_id] for job_id in before if job_id in queue})
            self._note_missing(gone)
            self._jobs.update(self._after_the_queue(gone))
        changed = any(self._jobs[job_id] != job for job_id, job in before.items())
        in_doubt = any(not self._jobs[job_id].ended for job_id in self._missing_since)
        self._pause_s = self._interval_s if changed or in_doubt else min(2 * self._pause_s, self._longest_interval_s)
        self._due_s = self._clock() + self._pause_s

    def _help(self, jobs: Mapping[str, JobStatus]) -> bool:
        """Whether something was done for one of them, so that the queue is another now."""
        done = {job_id: text for job_id, job in jobs.items() if (text := self._look_after(job))}
        kept = {job_id: text for job_id, text in self._notes.items() if job_id in jobs and _waits(jobs[job_id])}
        self._notes = kept | done
        return bool(done)

    def _note_missing(self, gone: Iterable[str]) -> None:
        now = self._clock()
        self._missing_since = {job_id: self._missing_since.get(job_id, now) for job_id in gone}

    def _after_the_queue(self, gone: Iterable[str]) -> dict[str, JobStatus]:
        recorded = self._ask_accounting(gone)
        found: dict[str, JobStatus] = {}
        for job_id in gone:
            record = recorded.get(job_id)
            if record is not None and record.ended:
                found[job_id] = record
            elif self._clock() - self._missing_since[job_id] >= self._vanished_after_s:
                found[job_id] = _vanished(self._jobs[job_id])
        return found

    def _ask_accounting(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        wanted = list(job_ids)
        if not wanted or not self._accounting_is_on:
            return {}
        try:
            recorded = self._read_accounting(wanted)
        except SlurmError as error:
            _log.warning("accounting could not be read: %s", error)
            return {}
        self._accounting_is_on = recorded is not None
        return recorded or {}


def _waits(job: JobStatus) -> bool:
    return job.state == "PENDING"


def _vanished(job: JobStatus) -> JobStatus:
    last = job.components or (ComponentStatus(offset=0, job_id=job.job_id, state=VANISHED),)
    return replace(job, components=tuple(replace(component, state=VANISHED, reason="") for component in last))
