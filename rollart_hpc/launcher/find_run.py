"""From what a user types to a run's directory: a path, a name below runs/, or the id of a Slurm job."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rollart_hpc.errors import ConfigError, SlurmError
from rollart_hpc.launcher.run_directory import is_run, jobs_of
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.queue.squeue import leader_of, read_queue

RUNS = Path("runs")
_EMBEDDED = re.compile(r"<<'(?P<marker>\w+)'\n(?P<config>.*?)\n(?P=marker)$", re.DOTALL | re.MULTILINE)


def find_run(text: str) -> Path:
    """The directory of the run that ``text`` names.

    Raises:
        ConfigError: there is none; the text says what was looked at.
    """
    for directory in (Path(text), RUNS / text):
        if is_run(directory):
            return directory.absolute()
    if re.fullmatch(r"\d+(\+\d+)?", text):
        return _run_of_job(text.partition("+")[0])
    raise ConfigError(
        f"{text}: no run's directory, no run in {RUNS}/, and no job id; `rollart-hpc list` shows the runs"
    )


def find_runs(parent: Path) -> list[Path]:
    """Directories of the runs right below ``parent``, by name."""
    return sorted(path for path in parent.iterdir() if is_run(path)) if parent.is_dir() else []


def _run_of_job(job_id: str) -> Path:
    for directory in find_runs(RUNS):
        if job_id in jobs_of(directory):
            return directory.absolute()
    try:
        script = run_slurm("scontrol", "write", "batch_script", job_id, "-")
    except SlurmError as error:
        raise ConfigError(f"job {job_id}: no run in {RUNS}/ has it, and Slurm does not know it: {error}") from error
    for embedded in _EMBEDDED.finditer(script):
        try:
            return Path(json.loads(embedded["config"])["run"]["directory"])
        except (ValueError, KeyError, TypeError):
            continue
    leader = _leader_in_queue(job_id)
    if leader != job_id:
        return _run_of_job(leader)
    raise ConfigError(f"job {job_id} is no run of rollart-hpc that Slurm still knows: no batch script with a config")


def _leader_in_queue(job_id: str) -> str:
    """Of Slurm's own number of a component, the job that it belongs to; else the same id."""
    try:
        return leader_of(job_id, read_queue()) or job_id
    except SlurmError:
        return job_id
