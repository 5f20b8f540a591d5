"""Putting a job back: into the queue, whole again after the failure of a node, or as another job after it."""

from __future__ import annotations

from contextlib import suppress

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import run_slurm

_SBATCH_DEADLINE_S = 60.0


def requeue_job(job_id: str) -> None:
    """Puts a running job back into the queue, all of it; Slurm then ends its processes.

    Slurm would do the same with a job that is being cancelled, so look at its state before.

    Raises:
        SlurmError: Slurm refused.
    """
    run_slurm("scontrol", "requeue", job_id)


def mend_job(job_id: str) -> None:
    """Puts those components back into the queue that Slurm left out when it lost a node.

    Slurm 22.05 does it, and yet says that the job is pending and ends with an error: look whether it helped.
    """
    with suppress(SlurmError):
        run_slurm("scontrol", "requeue", job_id)


def submit_after(job_id: str, script: str) -> str:
    """Submits a batch script, to start when a job has ended in whatever way; the new job's id.

    Every component of the new job gets the dependency.

    Raises:
        SlurmError: sbatch refused.
    """
    answer = run_slurm(
        "sbatch", "--parsable", f"--dependency=afterany:{job_id}", text=script, deadline_s=_SBATCH_DEADLINE_S
    )
    new = answer.strip().partition(";")[0]
    if not new.isdecimal():
        raise SlurmError(f"sbatch said {answer!r} instead of the job's id; see `squeue --me`")
    return new


def read_script(job_id: str) -> str:
    """The batch script of a job, as Slurm keeps it: without empty lines where a component's options end.

    Raises:
        SlurmError: Slurm does not know the job.
    """
    return run_slurm("scontrol", "write", "batch_script", job_id, "-")


def nudge_job(job_id: str, *, may_requeue: bool) -> None:
    """Makes the scheduler look again: it sleeps as long as nothing changes, and a job's time to start is no change.

    The update sets what is set already; Slurm counts it all the same.

    Raises:
        SlurmError: Slurm refused.
    """
    run_slurm("scontrol", "update", f"jobid={job_id}", f"Requeue={int(may_requeue)}")
