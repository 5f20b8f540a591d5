"""Asks sbatch whether it would take a batch script, without submitting it."""

from __future__ import annotations

from rollart_hpc.slurm.commands import ask_slurm

_WARNING = "Warning:"


def try_submission(script: str) -> list[str]:
    """What sbatch would warn of: it cuts what it cannot give, such as nodes without a task, and takes the job.

    It promises a start even to jobs that would wait for ever (a time limit above the partition's): that is
    `rollart_hpc.slurm.doctor.examination`'s to find.

    Raises:
        NoSlurmError: there is no Slurm here, or its controller does not answer.
        SlurmError: sbatch would refuse the script; with its own words.
    """
    answer = ask_slurm("sbatch", "--test-only", text=script)
    words = (line.partition(_WARNING) for line in answer.warnings.splitlines())
    return list(dict.fromkeys(warning.strip() for _, mark, warning in words if mark))
