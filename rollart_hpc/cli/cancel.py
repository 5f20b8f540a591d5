"""``rollart-hpc cancel``: the end of a run's job."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from rollart_hpc.cli.status import RunArgument


def cancel(
    run: RunArgument,
    save: Annotated[
        bool, typer.Option("--save", help="Let it save at the next step boundary first; resume it later.")
    ] = False,
) -> None:
    """Cancel the Slurm jobs of RUN, all their components; with --save, ask it to save and end by itself.

    The run does not go on by itself then.
    """
    from rollart_hpc.errors import ConfigError
    from rollart_hpc.launcher.find_run import find_run
    from rollart_hpc.launcher.run_directory import ask_to_end, jobs_of
    from rollart_hpc.slurm.queue.notice import send_notice
    from rollart_hpc.slurm.queue.squeue import cancel_job, live_jobs

    directory = find_run(run)
    jobs = jobs_of(directory)
    if not jobs:
        raise ConfigError(f"{directory} has no Slurm job; a run on this machine ends with Ctrl-C where it was started")
    # The newest first: one that waits for another must not start when that one ends.
    live = live_jobs(reversed(jobs)) or jobs[-1:]
    quoted = shlex.quote(str(directory))
    for job in live if not save else live[:-1]:
        cancel_job(job)
        print(f"job {job} is cancelled; go on with the run later: rollart-hpc submit {quoted}")
    if save:
        send_notice(live[-1], before=lambda: ask_to_end(directory, live[-1]))
        print(f"job {live[-1]} was asked to save and end; watch it with: rollart-hpc status {quoted} --watch")
