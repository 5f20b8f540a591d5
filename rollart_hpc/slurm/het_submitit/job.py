"""Jobs as submitit knows them: of one component, and of a whole het job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
from submitit.core.core import Job
from submitit.core.utils import UncompletedJobError
from submitit.slurm.slurm import SlurmJob

from rollart_hpc.errors import SlurmError
from rollart_hpc.processes import describe_exit, tail
from rollart_hpc.slurm.het_submitit.paths import HetJobPaths
from rollart_hpc.slurm.het_submitit.watcher import HetInfoWatcher
from rollart_hpc.slurm.queue.job_state import UNKNOWN, VANISHED, fold_states, has_ended
from rollart_hpc.slurm.queue.squeue import cancel_job

R_co = TypeVar("R_co", covariant=True)
_GRACE_S = 2.0
"""How long the result of a step that has ended may take to be seen: a shared file system is not always quick."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
COMPLETING = "COMPLETING"
"""The state of a job whose work is done while Slurm has not said so yet."""
_OLD_NEWS = frozenset({UNKNOWN, "PENDING", "CONFIGURING", VANISHED})
"""States that cannot be those of a step that has ended."""


class ComponentJob(SlurmJob[R_co]):
    """A job of one component, or one component of a het job: its own tasks, results, logs and state."""

    watcher: ClassVar[HetInfoWatcher] = HetInfoWatcher()  # pyright: ignore[reportIncompatibleVariableOverride]
    _cancel_at_deletion = False  # also for a job whose __init__ did not get far
    _over_since: float | None = None

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,), offset: int | None = None) -> None:
        self._state_id = job_id if offset is None else f"{job_id}+{offset}"
        self.warnings: tuple[str, ...] = ()
        """What sbatch said while it accepted the job."""
        super().__init__(folder, job_id, tasks)
        for task in self._sub_jobs:
            task._state_id = self._state_id  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def state(self) -> str:
        """As Slurm says it, and as the files say where that cannot be true any more; Slurm is not asked each time.

        VANISHED when the job is over and nobody knows how.
        """
        state = self.watcher.get_state(self._state_id)
        if has_ended(state) and state != VANISHED:
            return state
        end = self._end_by_files()
        if end is None:
            return state
        self.watcher.expect_end(self._state_id)
        state = self.watcher.get_state(self._state_id)
        return end if state in _OLD_NEWS and (has_ended(end) or state != VANISHED) else state

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """What Slurm knows of it: State, NodeList, Reason, Start."""
        return self.watcher.get_info(self._state_id, mode)

    def wait(self) -> None:
        """Returns when `done`; files are looked at every second, in the beginning more often."""
        pause_s = _FIRST_PAUSE_S
        while not self.done():
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)

    def done(self, force_check: bool = False) -> bool:
        """Whether there is a result, the component's step has ended without one, or the job is over."""
        if self._sub_jobs:
            if force_check:
                self.watcher.status(self.job_id, "force")
            return all(task.done() for task in self._sub_jobs)
        is_over = self._exit_code() is not None or super().done(force_check)
        if is_over and self._over_since is None:
            self._over_since = time.time()
        return is_over

    def results(self) -> list[R_co]:
        """The results of all tasks.

        Raises:
            FailedJobError: a task raised; the text has its traceback.
            UncompletedJobError: a task ended without a result.
        """
        if self._sub_jobs and (error := self.exception()) is not None:
            raise error
        return super().results()

    def exception(self) -> UncompletedJobError | None:
        """Waits; the exception of the task that raised first by rank, before those that were ended for it."""
        self.wait()
        for task in self._sub_jobs:
            if task.paths.result_pickle.exists() and (error := task.exception()) is not None:
                return error
        return super().exception()

    def cancel(self, check: bool = True) -> None:
        """Ends the whole het job, whichever component this is; nothing when it is over.

        Raises:
            SlurmError: Slurm refused; not without ``check``.
        """
        if self.watcher.status(self.job_id, "force").ended:
            return
        try:
            cancel_job(self.job_id)
        except SlurmError:
            if check:
                raise
        self.watcher.expect_end(self.job_id)
        self.watcher.update()

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        if not self.paths.folder.exists():
            raise UncompletedJobError(f"job {self.job_id} ({self.state}): there is no folder {self.paths.folder}")
        if not self._waits_for_result():
            raise UncompletedJobError(self._why_no_result())
        return super()._get_outcome_and_result()

    def _waits_for_result(self) -> bool:
        """Whether it came; all tasks that are over wait at the same time."""
        begin = time.time() if self._over_since is None else self._over_since
        while not self.paths.result_pickle.exists():
            if time.time() - begin >= self._patience_s():
                return False
            time.sleep(_FIRST_PAUSE_S)
            with suppress(OSError):  # a network file system looks again into a directory that has changed
                self.paths.folder.chmod(self.paths.folder.stat().st_mode)
        return True

    def _patience_s(self) -> float:
        """Short when it is certain that nothing comes: the step has ended by its own file, or Slurm has ended it."""
        state = self.watcher.get_state(self._state_id, "cache")
        is_certain = self._exit_code() is not None or (has_ended(state) and state not in {"COMPLETED", VANISHED})
        return min(_GRACE_S, self._results_timeout_s) if is_certain else self._results_timeout_s

    def _why_no_result(self) -> str:
        code = self._exit_code()
        self.watcher.expect_end(self._state_id)
        state = self.state
        where = f"job {self.job_id}, task {self._tasks[0]} in {self.paths.folder}"
        how = "" if code is None else f": {describe_exit(code)}"
        text = f"{where}: it ended without a result{how} (state: {state})"
        if code == 0:
            text += "\nA function that ends its process by itself (sys.exit, os._exit) leaves no result"
        for log in (self.paths.stderr, self.paths.stdout):
            if words := tail(log, 40):
                return f"{text}\nThe end of {log}:\n{words}"
        return f"{text}\nIts logs are empty: {self.paths.stdout}"

    def _exit_code(self) -> int | None:
        """Of the component's step, by the file that the batch script leaves; None while it is not over."""
        try:
            return int((self.paths.folder / f"{self.job_id}_exit").read_text())
        except (OSError, ValueError):  # ValueError: it is just being written
            return None

    def _end_by_files(self) -> str | None:
        """The state that the files tell; None while the step may still run."""
        if self._sub_jobs:
            ends = [task._end_by_files() for task in self._sub_jobs if isinstance(task, ComponentJob)]
            known = [end for end in ends if end is not None]
            return fold_states(known) if len(known) == len(ends) else None
        code, has_result = self._exit_code(), self.paths.result_pickle.exists()
        if code is None:
            return COMPLETING if has_result else None
        return "COMPLETED" if code == 0 and has_result else "FAILED"


class HetJob(ComponentJob[Any]):
    """One Slurm job with several components, each a job of its own in `components`.

    All tasks of all components count as its tasks, in the order of the components: `num_tasks`, `task(i)`,
    `results()`, `exception()`, `stdout()` are those of a job with that many tasks.
    """

    paths_class: ClassVar[type[HetJobPaths]] = HetJobPaths

    def __init__(
        self,
        folder: Path | str,
        job_id: str,
        tasks: Sequence[int] = (0,),
        components: Mapping[str, int] | None = None,
    ) -> None:
        paths = self.paths_class(folder, job_id=job_id)
        sizes = _read_components(paths.components_file) if components is None else components
        super().__init__(folder, job_id, tasks)
        self._paths = paths
        self.components: dict[str, ComponentJob[Any]] = self._list_components(sizes)
        self._sub_jobs = self._list_tasks()

    def _list_components(self, sizes: Mapping[str, int]) -> dict[str, ComponentJob[Any]]:
        folder = self.paths._folder  # pyright: ignore[reportPrivateUsage]
        return {
            name: ComponentJob(folder / name, self.job_id, range(num_tasks), offset)
            for offset, (name, num_tasks) in enumerate(sizes.items())
        }

    def _list_tasks(self) -> list[Job[Any]]:
        return [job.task(number) for job in self.components.values() for number in range(job.num_tasks)]

    @property
    def paths(self) -> HetJobPaths:
        """Of the whole job; each component has its own."""
        assert isinstance(self._paths, HetJobPaths)
        return self._paths

    def result(self) -> dict[str, Any]:
        """Waits; the result of each component by name: a value, or a list of those of its tasks when it has several.

        Raises:
            FailedJobError, UncompletedJobError: see `ComponentJob.results`; the components that did well have theirs.
        """
        if (error := self.exception()) is not None:
            raise error
        return {name: job.results() if job.num_tasks > 1 else job.result() for name, job in self.components.items()}


def _read_components(file: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        raise ValueError(
            f"{file} does not exist, so the components of this job are not known; give the folder it was submitted with"
        ) from None
