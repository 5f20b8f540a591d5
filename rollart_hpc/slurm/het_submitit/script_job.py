"""The job of a batch script that someone else made: it has an end and perhaps a result, but no tasks of submitit's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from submitit.core.core import Job
from submitit.core.utils import UncompletedJobError

from rollart_hpc.processes import tail
from rollart_hpc.slurm.het_submitit.job import COMPLETING, ComponentJob, HetJob
from rollart_hpc.slurm.het_submitit.paths import HetJobPaths, ScriptJobPaths


class ScriptJob(HetJob):
    """The job of a finished batch script. It is over when Slurm says so, or `is_over` does; override what differs.

    Its folder is taken to the letter: nothing in it stands for the job's id.
    """

    paths_class: ClassVar[type[HetJobPaths]] = ScriptJobPaths

    @property
    def script_folder(self) -> Path:
        """The folder that it was submitted with."""
        return self._paths._folder  # pyright: ignore[reportPrivateUsage]

    def _list_components(self, sizes: Mapping[str, int]) -> dict[str, ComponentJob[Any]]:
        return {name: ScriptComponent(self, offset) for offset, name in enumerate(sizes)}

    def _list_tasks(self) -> list[Job[Any]]:
        return []

    def is_over(self) -> bool:
        """Override: whether it is known to be over by other means than the queue."""
        return False

    def read_result(self) -> Any:
        """Override: the result of the job that is over; it may raise, say UncompletedJobError.

        Raises:
            UncompletedJobError: the job did not complete.
        """
        status = self.watcher.status(self.job_id, "force")
        if status.state == "COMPLETED":
            return None
        reason = f" ({status.reason})" if status.reason else ""
        raise UncompletedJobError(f"job {self.job_id} ended as {status.state}{reason}\n{tail(self.paths.stdout, 40)}")

    def done(self, force_check: bool = False) -> bool:
        """Whether it is over."""
        return self.is_over() or self.watcher.is_done(self.job_id, "force" if force_check else "standard")

    def result(self) -> Any:
        """Waits; what `read_result` gives."""
        self.wait()
        return self.read_result()

    def results(self) -> list[Any]:
        """Waits; the one result as a list."""
        return [self.result()]

    def exception(self) -> UncompletedJobError | None:
        """Waits; what `read_result` raises."""
        self.wait()
        try:
            self.read_result()
        except UncompletedJobError as error:
            return error
        return None

    def _end_by_files(self) -> str | None:
        return COMPLETING if self.is_over() else None


class ScriptComponent(ComponentJob[Any]):
    """A component of a script's job: its state and its nodes are its own, all else is the whole job's."""

    def __init__(self, whole: ScriptJob, offset: int) -> None:
        self.whole = whole
        super().__init__(whole.script_folder, whole.job_id, offset=offset)

    @property
    def paths(self) -> HetJobPaths:
        """Of the whole job."""
        return self.whole.paths

    def done(self, force_check: bool = False) -> bool:
        """Whether the whole job is over."""
        return self.whole.done(force_check)

    def results(self) -> list[Any]:
        """Waits; the result of the whole job as a list."""
        return self.whole.results()

    def exception(self) -> UncompletedJobError | None:
        """Waits; the exception of the whole job."""
        return self.whole.exception()

    def stdout(self) -> str | None:
        """The output of the whole job."""
        return self.whole.stdout()

    def stderr(self) -> str | None:
        """The same."""
        return self.whole.stderr()

    def _end_by_files(self) -> str | None:
        return COMPLETING if self.whole.is_over() else None
