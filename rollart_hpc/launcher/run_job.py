"""A submitted run as a submitit job: its state and its result come from the run's own files first."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from submitit.core.utils import UncompletedJobError

from rollart_hpc.launcher.attempt_log import AttemptRecord, read_attempts
from rollart_hpc.launcher.run_directory import chained_jobs
from rollart_hpc.launcher.status import RunStatus, is_over, read_status
from rollart_hpc.observe.metrics import read_summary
from rollart_hpc.processes import tail
from rollart_hpc.slurm.het_submitit import ScriptJob
from rollart_hpc.slurm.het_submitit.job import COMPLETING
from rollart_hpc.slurm.het_submitit.paths import HetJobPaths, ScriptJobPaths
from rollart_hpc.slurm.queue.job_state import VANISHED, has_ended

_ENDS = {"done": "COMPLETED", "stopped": "FAILED", "failed": "FAILED"}


class RunJobPaths(ScriptJobPaths):
    """The batch script opens its output by itself, in the run's directory."""

    @property
    def stdout(self) -> Path:
        """What the leader prints."""
        return self._format_id(self._folder.parent / "slurm-%j.out")


class RunJob(ScriptJob):
    """The Slurm job of a run. `result` is the run's summary (summary.json).

    A run that is stopped and goes on by itself is one job to its user, though `job_id` may become another.
    """

    paths_class: ClassVar[type[HetJobPaths]] = RunJobPaths
    _before: tuple[str, ...] = ()
    """The jobs whose run this one goes on with."""

    @property
    def run_directory(self) -> Path:
        """Where everything is that the run leaves."""
        return self.script_folder.parent

    @property
    def state(self) -> str:
        """As Slurm says it; where Slurm does not know any more, as the run's own records say."""
        state = super().state
        if has_ended(state) and self._moves_on():
            return self.state
        end = self._end()
        if end is None or (has_ended(state) and state != VANISHED) or not self.is_over():
            return state
        if end.event == "stopped" and state != VANISHED:
            return COMPLETING  # Slurm alone knows whether it was cancelled
        return _ENDS[end.event]

    def done(self, force_check: bool = False) -> bool:
        """Whether the run is over; while it is requeued or another job goes on with it, it is not."""
        while super().done(force_check):
            if not self._moves_on():
                return True
        return False

    def cancel(self, check: bool = True) -> None:
        """Ends the job, and before it the one that would go on with the run; nothing when it is over.

        Raises:
            SlurmError: Slurm refused; not without ``check``.
        """
        follower = self._follower()
        if follower is not None:
            RunJob(self.script_folder, follower, components=dict.fromkeys(self.components, 1)).cancel(check)
        super().cancel(check)

    def status(self) -> RunStatus:
        """Attempt, step, workers and what it waits for."""
        return read_status(self.run_directory, self.watcher.states)

    def is_over(self) -> bool:
        """Whether the run's own records say that this job's attempt has ended, and Slurm has not requeued it."""
        return self._end() is not None and is_over(self.run_directory, self.watcher.states)

    def read_result(self) -> dict[str, Any]:
        """The summary of the run.

        Raises:
            UncompletedJobError: it was stopped or cancelled, or has failed; the text says why.
        """
        end = self._end()
        if end is not None and end.event == "done":
            return read_summary(self.run_directory)
        if end is None:
            reason = f"it ended as {self.state} before its leader could say why"
        else:
            reason = end.cause or "it was stopped in order and can be resumed"
        where = f"job {self.job_id} of the run in {self.run_directory}"
        raise UncompletedJobError(f"{where} did not complete: {reason}\n{tail(self.paths.stdout)}")

    def _follower(self) -> str | None:
        """The job that this one's leader has submitted to go on."""
        chained = chained_jobs(self.run_directory)
        return next((job for job, former in chained.items() if former == self.job_id), None)

    def _moves_on(self) -> bool:
        """Becomes the job that goes on with the run, if there is one."""
        follower = self._follower()
        if follower is None:
            return False
        self._before = (*self._before, self.job_id)
        self._job_id = self._state_id = follower
        self._paths = self.paths_class(self.script_folder, job_id=follower)
        self.components = self._list_components(dict.fromkeys(self.components, 1))
        self.watcher.register_job(follower)
        return True

    def _end(self) -> AttemptRecord | None:
        own = {*self._before, self.job_id}
        mine = [record for record in read_attempts(self.run_directory) if record.job in own]
        return mine[-1] if mine and mine[-1].event in _ENDS else None
