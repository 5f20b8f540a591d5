"""The notice that a user sends: the same signal that Slurm sends before a time limit."""

from __future__ import annotations

from collections.abc import Callable

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.queue.squeue import require_live


def send_notice(job_id: str, *, before: Callable[[], None] = lambda: None) -> None:
    """Asks the leader of a running job to save at the next step boundary and to end.

    ``before`` is called when it is known that the job runs.

    Raises:
        SlurmError: it does not run, or is not this user's.
    """
    state = require_live(job_id).state
    if state != "RUNNING":
        # scancel would wait for it to start, and give up.
        raise SlurmError(f"job {job_id} is {state} and has nothing to save; cancel it without --save")
    before()
    run_slurm("scancel", "--batch", "--signal=USR2", job_id)
