"""submitit's watcher of jobs, on top of `JobStates`: het jobs are folded, and the queue is asked seldom."""

from __future__ import annotations

import time
from collections.abc import Callable

from submitit.core.core import InfoWatcher

from rollart_hpc.slurm.queue.job_state import JobStatus, has_ended, split_id
from rollart_hpc.slurm.queue.job_states import JobStates

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 16.0


class HetInfoWatcher(InfoWatcher):
    """Answers for jobs (``12``) and for single components (``12+1``). The modes are upstream's.

    ``force`` asks Slurm now, ``standard`` when it is due, ``cache`` never.
    """

    def __init__(self, states: JobStates | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.states = states or JobStates()
        self._clock = clock
        self._expected: set[str] = set()
        self._hurry: dict[str, tuple[float, float]] = {}
        """By job: when to ask next, and the pause after that."""

    @property
    def num_calls(self) -> int:
        """How often Slurm was asked."""
        return self.states.num_queries

    def register_job(self, job_id: str) -> None:
        """Watches a job whose state is not known yet."""
        self.states.watch(split_id(job_id)[0])

    def note_submission(self, job_id: str) -> None:
        """Watches a job that sbatch has just accepted."""
        self.states.watch(job_id, state="PENDING")

    def status(self, job_id: str, mode: str = "standard") -> JobStatus:
        """The whole job that ``job_id`` names or belongs to."""
        leader, _ = split_id(job_id)
        if mode == "cache":
            return self.states.known(leader)
        return self.states.status(leader, force=mode == "force" or self._is_due(leader))

    def expect_end(self, job_id: str) -> None:
        """Says that a job, or a component, ends about now: Slurm is asked with the next question, then after 1, 2, 4,
        8 and 16 s, unless the job has ended. Only the first time for each id."""
        if job_id not in self._expected:
            self._expected.add(job_id)
            self._hurry[split_id(job_id)[0]] = (self._clock(), _FIRST_PAUSE_S)

    def _is_due(self, leader: str) -> bool:
        now = self._clock()
        due_s, pause_s = self._hurry.get(leader, (float("inf"), 0.0))
        if now < due_s:
            return False
        if pause_s > _LONGEST_PAUSE_S:
            del self._hurry[leader]
        else:
            self._hurry[leader] = (now + pause_s, 2 * pause_s)
        return True

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """The state of a job, or of one component."""
        job = self.status(job_id, mode)
        part = job.component(split_id(job_id)[1]) if "+" in job_id else None
        return job.state if part is None else part.state

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether it is over; a state that nobody knows is not."""
        return has_ended(self.get_state(job_id, mode))

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """What Slurm knows of it, by upstream's names."""
        job = self.status(job_id, mode)
        part = (job.component(split_id(job_id)[1]) if "+" in job_id else None) or job
        start = part.start.isoformat() if part.start else ""
        return {"JobID": job_id, "State": part.state, "NodeList": part.nodes, "Reason": part.reason, "Start": start}

    def update(self) -> None:
        """Asks Slurm now."""
        self.states.refresh()

    def update_if_long_enough(self, mode: str) -> None:
        """Asks Slurm now when forced; else it is asked with the next question that is due."""
        if mode == "force":
            self.states.refresh()

    def clear(self) -> None:
        """Forgets everything."""
        self.states = JobStates()
        self._expected.clear()
        self._hurry.clear()
