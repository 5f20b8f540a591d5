"""What whoever watches a job does for it: Slurm forgets jobs of several components in two ways.

A job that was put back into the queue may wait without a reason although everything is free, since the scheduler sleeps
until something changes: it is nudged. After the failure of a node Slurm may put only some of the components back: the
rest follows. Each at most once a minute for a job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.queue.job_facts import JobFacts, read_job_facts
from rollart_hpc.slurm.queue.job_state import JobStatus, has_ended
from rollart_hpc.slurm.queue.requeue import mend_job, nudge_job

_log = logging.getLogger(__name__)
_PATIENCE_S = 15.0
_PAUSE_S = 60.0


@dataclass(slots=True)
class JobCare:
    """Looks after the jobs of one watcher."""

    clock: Callable[[], float] = time.time
    read_facts: Callable[[str], JobFacts] = read_job_facts
    mend: Callable[[str], None] = mend_job
    nudge: Callable[..., None] = nudge_job
    _done: dict[str, float] = field(default_factory=dict[str, float])

    def look_after(self, job: JobStatus) -> str:
        """Does what the job needs now; in words what was done, empty for nothing.

        A Slurm that does not answer, or refuses, is asked again after the pause.
        """
        if not (is_left_out(job) or _waits_for_nothing(job)):
            return ""
        if self.clock() - self._done.get(job.job_id, float("-inf")) < _PAUSE_S:
            return ""
        try:
            return self._help(job)
        except SlurmError as error:
            self._done[job.job_id] = self.clock()
            _log.warning("job %s could not be helped: %s", job.job_id, error)
            return ""

    def _help(self, job: JobStatus) -> str:
        if is_left_out(job):
            self._done[job.job_id] = self.clock()
            self.mend(job.job_id)
            return "Slurm lost a node and put only some components back into the queue: the others were put back, too"
        facts = self.read_facts(job.job_id)
        if facts.eligible is None or self.clock() - facts.eligible.timestamp() < _PATIENCE_S:
            return ""
        self._done[job.job_id] = self.clock()
        self.nudge(job.job_id, may_requeue=facts.may_requeue)
        return "Slurm gives no reason; its scheduler was asked to look again"


def is_left_out(job: JobStatus) -> bool:
    """Whether it waits for components that Slurm has ended, other than at somebody's wish."""
    ends = {component.state for component in job.components if has_ended(component.state)}
    return job.is_broken and not ends & {"CANCELLED", "COMPLETED"}


def _waits_for_nothing(job: JobStatus) -> bool:
    parts = job.components
    return bool(parts) and all(part.state == "PENDING" and not part.reason for part in parts)
