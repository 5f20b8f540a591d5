"""How a run that is a Slurm job goes on after a stop: its job requeued, the next one chained, or its user's turn.

Only the leader asks, from the batch script, so that nothing is done twice. What Slurm says of the job decides:

    it runs, within its limit or the grace of a preemption    requeue; chain, where preempted jobs are cancelled
    Slurm has requeued it                                     nothing more
    Slurm has requeued only some components: a node failed    the others follow
    its time is over                                          chain
    it was cancelled, or its user asked it to save and end    nothing

Slurm would requeue a job even while it is being cancelled, so nothing is asked for in any other state. A job that was
chained before its user cancelled the first one finds that out when it starts (`was_cancelled`).
"""

from __future__ import annotations

import logging
import math
import shlex
import shutil
import time
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import NoSlurmError, RollartError, SlurmError
from rollart_hpc.launcher import run_directory
from rollart_hpc.launcher.attempt_log import read_events
from rollart_hpc.slurm.allocated import AllocatedJob
from rollart_hpc.slurm.queue.job_facts import Course, JobFacts, read_job_facts
from rollart_hpc.slurm.queue.job_states import JobStates
from rollart_hpc.slurm.queue.preempt_mode import preempt_modes
from rollart_hpc.slurm.queue.requeue import mend_job, read_script, requeue_job, submit_after

_log = logging.getLogger(__name__)
_MARGIN = 1.5
_MARGIN_S = 10.0
"""A stop may take that much longer than the last one."""
_TRIES, _PAUSE_S = 3, 2.0
"""For a controller of Slurm that does not answer at the one moment that counts."""


class SlurmContinuation:
    """Of one start of the job. Slurm is asked at each call, since users and administrators change running jobs."""

    def __init__(self, config: RunConfig, job: AllocatedJob) -> None:
        self._directory, self._job_id, self._mode = config.run.path(), job.job_id, config.slurm.requeue
        self._facts: JobFacts | None = None
        self._refresh()
        self._restarts = (job.restarts,) * len(job.nodes)
        # Another number than the script was started with: Slurm has requeued the job meanwhile.
        if self._facts is not None and self._facts.restarts[0] == job.restarts:
            self._restarts = self._facts.restarts
        self._notice_s = self._longest_notice_s(config.slurm.notice_s)
        self._comes_back = self._ask_whether_it_comes_back()
        self._arranged = ""

    def stop_at(self) -> float:
        """The end of the allocation, as it is now, less the notice; infinity when Slurm says none."""
        self._refresh()
        end = None if self._facts is None else self._facts.end
        return math.inf if end is None else end.timestamp() - self._notice_s

    def noticed(self) -> None:
        """Arranges what cannot wait until all is saved, since Slurm may end this process before.

        May be called at every signal: one that comes later may tell more, such as that the time is over.
        """
        if self._arranged:
            return
        course, now = self._look()
        is_lost = course is Course.PREEMPTED and not self._comes_back and self._mode in ("auto", "chain")
        if is_lost or course in (Course.HALVED, Course.TIME_UP):
            self._arrange(course, now)

    def go_on(self) -> str:
        """Arranges it, unless that was done at the notice; in words."""
        if not self._arranged:
            self._arrange(*self._look())
        return self._arranged

    def _look(self) -> tuple[Course, JobFacts | None]:
        if run_directory.is_asked_to_end(self._directory, self._job_id):
            return Course.CANCELLED, None
        for left in reversed(range(_TRIES)):
            try:
                self._facts = read_job_facts(self._job_id)
                return self._facts.course(self._restarts), self._facts
            except SlurmError as error:
                _log.warning("Slurm does not say how job %s is: %s", self._job_id, error)
                if not left or not isinstance(error, NoSlurmError):
                    break
                time.sleep(_PAUSE_S)
        return Course.UNKNOWN, None

    def _arrange(self, course: Course, now: JobFacts | None) -> None:
        """What Slurm refuses is the user's turn."""
        try:
            self._arranged = self._act(course, now)
        except (RollartError, OSError) as error:
            go_on = f"rollart-hpc submit {shlex.quote(str(self._directory))}"
            _log.error("the run does not go on by itself: %s; go on with: %s", error, go_on)

    def _act(self, course: Course, now: JobFacts | None) -> str:
        if course is Course.REQUEUED:
            return f"Slurm has requeued job {self._job_id}"
        if course is Course.CANCELLED or self._mode == "none":
            return ""
        if course is Course.HALVED:
            return self._mend()
        if now is None or course is Course.UNKNOWN:
            raise SlurmError(f"what becomes of job {self._job_id} is not known")
        is_running = now.components[0].state == "RUNNING"
        if is_running and (self._mode == "requeue" or (self._mode == "auto" and self._comes_back)):
            return self._requeue()
        if self._mode == "requeue":
            raise SlurmError(f"{course}: job {self._job_id} cannot be requeued now, and slurm.requeue is 'requeue'")
        return self._chain()

    def _requeue(self) -> str:
        try:
            requeue_job(self._job_id)
        except SlurmError as error:
            if self._mode == "requeue":
                raise
            _log.warning("job %s is not requeued: %s", self._job_id, error)
            return self._chain()
        return f"job {self._job_id} is requeued"

    def _mend(self) -> str:
        mend_job(self._job_id)
        course, _ = self._look()
        if course is not Course.REQUEUED:
            raise SlurmError(f"Slurm lost a node of job {self._job_id} and left half of it in the queue")
        return f"Slurm lost a node of job {self._job_id} and has requeued it"

    def _chain(self) -> str:
        new = submit_after(self._job_id, self._script())
        try:
            self._record(new)
        except OSError as error:  # a full disk, perhaps; the job records itself when it starts
            _log.warning("job %s is submitted, but not recorded: %s", new, error)
        return f"job {new} goes on after job {self._job_id}"

    def _record(self, new: str) -> None:
        """Notes the job that follows, and keeps for it what was kept for this one."""
        run_directory.record_job(self._directory, new, after=self._job_id)
        folder = self._directory / run_directory.SCRIPTS
        for path in folder.glob(f"{self._job_id}_*"):
            shutil.copyfile(path, folder / path.name.replace(self._job_id, new, 1))

    def _script(self) -> str:
        kept = self._directory / run_directory.SCRIPTS / f"{self._job_id}_submission.sh"
        return kept.read_text() if kept.is_file() else read_script(self._job_id)

    def _refresh(self) -> None:
        try:
            self._facts = read_job_facts(self._job_id)
        except SlurmError as error:
            _log.warning("Slurm does not say how job %s is: %s", self._job_id, error)

    def _ask_whether_it_comes_back(self) -> bool:
        """Whether the job may be requeued and a preemption does not cancel it."""
        if self._facts is None:
            return True
        try:
            return self._facts.may_requeue and "CANCEL" not in preempt_modes(self._facts)
        except SlurmError as error:
            _log.warning("Slurm does not say what becomes of preempted jobs: %s", error)
            return self._facts.may_requeue

    def _longest_notice_s(self, configured_s: float) -> float:
        """The configured one, or what the last stop took if that is more, but not most of the job's time."""
        took_s = last_stop_s(self._directory)
        if took_s is None or self._facts is None or self._facts.end is None or self._facts.start is None:
            return configured_s
        half_s = (self._facts.end - self._facts.start).total_seconds() / 2
        return max(configured_s, min(_MARGIN * took_s + _MARGIN_S, half_s))


def last_stop_s(run: Path) -> float | None:
    """From the last notice until everything was saved; None when the run was never stopped."""
    return next((record.saved_s for record in reversed(read_events(run)) if record.saved_s is not None), None)


def was_cancelled(job_id: str) -> bool:
    """Whether Slurm says that a user or an administrator has ended a job, as far as it still knows."""
    job = JobStates(vanished_after_s=0.0).status(job_id)
    return any(component.state == "CANCELLED" for component in job.components)
