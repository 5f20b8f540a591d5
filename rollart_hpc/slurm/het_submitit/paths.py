"""Where the files of a whole job are."""

from __future__ import annotations

from pathlib import Path

from submitit.core.utils import JobPaths


class HetJobPaths(JobPaths):
    """Paths of a whole job: its output is that of the batch script.

    The batch script's output lies outside a folder of the job's own (``%j``): Slurm opens it before anyone can make
    that folder.
    """

    @property
    def stdout(self) -> Path:
        """The batch script's output."""
        return self._format_id(batch_log(self._folder))

    @property
    def stderr(self) -> Path:
        """The same file."""
        return self.stdout

    @property
    def components_file(self) -> Path:
        """Names of the components and how many tasks each has."""
        return self._format_id(self._folder / "%j_components.json")


class ScriptJobPaths(HetJobPaths):
    """Paths of a batch script's job: the folder is what it is, ``%j`` stands for the job's id in file names alone."""

    @property
    def script_folder(self) -> Path:
        """The folder that the script was submitted with, to the letter."""
        return self._folder

    @property
    def stdout(self) -> Path:
        """The batch script's output, when it does not open another."""
        return self._format_id(self._folder / "%j_batch.log")

    def _format_id(self, path: Path | str) -> Path:
        path = Path(path)
        return path if path == self._folder else path.with_name(str(super()._format_id(path.name)))


def batch_log(folder: Path) -> Path:
    """The output of a batch script, as a pattern of Slurm."""
    return JobPaths.get_first_id_independent_folder(folder) / "%j_batch.log"
