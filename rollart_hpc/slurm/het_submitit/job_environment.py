"""Inside a task: where it runs, and what it does when it is told that its time ends.

As in submitit, rank 0 of a component calls the function's ``checkpoint`` and stores what it returns as the next
submission. Unlike there, it never requeues the job itself: every component has a rank 0. It leaves a vote for the
batch script, which requeues once (see `batch_script`).
"""

# pyright: reportPrivateUsage=false
# The protected names are those that submitit keeps for plugins, and its own checkpoint function.

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType

from submitit.core.job_environment import SignalHandler, _checkpoint
from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.slurm.slurm import SlurmJobEnvironment

_SIGNAL_TOLERANCE_S = 60
"""Slurm sends the notice up to a minute early."""


class HetSlurmJobEnvironment(SlurmJobEnvironment):
    """Job id, ranks and nodes are those of the task's own component; the job id is the leader's in all of them."""

    @property
    def component(self) -> str:
        """The name of the component that this task belongs to."""
        return os.environ["SUBMITIT_COMPONENT"]

    @property
    def attempt(self) -> int:
        """How often the job was requeued before."""
        return int(os.environ.get("SUBMITIT_ATTEMPT", "0"))

    @property
    def vote(self) -> Path:
        """The file that asks the batch script for a requeue, in this component's name."""
        return self.paths.folder / f"{self.job_id}_{self.attempt}_requeue"

    def _handle_signals(self, paths: JobPaths, submission: DelayedSubmission) -> None:
        handler = HetSignalHandler(self, paths, submission)
        signal.signal(signal.SIGTERM, handler.save_once)
        signal.signal(signal.SIGCONT, handler.bypass)
        signal.signal(self._usr_sig(), handler.checkpoint_and_try_requeue)

    def _requeue(self, countdown: int) -> None:
        self.vote.touch()


class HetSignalHandler(SignalHandler):
    """The stock handler, with a time-out told from a preemption by the notice, and TERM as a last call to save."""

    _has_saved = False

    def has_timed_out(self) -> bool:
        """Whether the notice can be that of the time limit: also right for limits of some minutes."""
        limit_s = self._delayed._timeout_min * 60
        notice_s = int(os.environ.get("SUBMITIT_NOTICE_S", "90")) + _SIGNAL_TOLERANCE_S
        return time.time() - self._start_time >= max(limit_s - notice_s, limit_s / 2)

    def save_once(self, signum: int, frame: FrameType | None = None) -> None:
        """TERM: all that a preemption sends on most clusters, and then Slurm requeues by itself.

        The function saves, but goes on: a task that ended here would end the job, and the requeue with it. The signal
        comes several times.
        """
        self.bypass(signum, frame)
        if self._has_saved or self.env.global_rank or not hasattr(self._delayed.function, "checkpoint"):
            return
        self._has_saved = True
        _checkpoint(self._delayed, self._job_paths.submitted_pickle, self._delayed._timeout_countdown)
