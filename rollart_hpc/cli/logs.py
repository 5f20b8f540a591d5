"""``rollart-hpc logs``: what the processes of a run wrote."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def logs(
    run: Annotated[
        str, typer.Argument(metavar="RUN|JOB", help="A run's directory, its name below runs/, or a job id.")
    ],
    follow_on: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    role: Annotated[
        str | None, typer.Option(help="Only a role (actor_gen), a service (nats-server) or a process (actor_gen-0).")
    ] = None,
    attempt: Annotated[int | None, typer.Option(help="Another attempt than the newest.")] = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Last lines of each log.")] = 20,
) -> None:
    """Print the ends of the logs of RUN, and with -f what is added to them."""
    from rollart_hpc.launcher.find_run import find_run
    from rollart_hpc.launcher.log_files import follow, last_lines, log_files
    from rollart_hpc.launcher.status import is_over
    from rollart_hpc.slurm.queue.job_states import JobStates

    directory, states = find_run(run), JobStates()

    def look() -> dict[str, Path]:
        return log_files(directory, attempt=attempt, role=role)

    if not look():
        print(f"{directory} has no logs yet", file=sys.stderr)
    shown = follow(look, lambda: is_over(directory, states), lines) if follow_on else last_lines(look(), lines)
    for line in shown:
        print(line, flush=follow_on)
