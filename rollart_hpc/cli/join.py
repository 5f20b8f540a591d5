"""``rollart-hpc join``: more workers for a running run, from anywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from rollart_hpc.cli.status import RunArgument
from rollart_hpc.data_plane.stop_signals import remember_stop_signals


def join(
    run: RunArgument,
    role: Annotated[str, typer.Option("--role", help="actor_gen, environment or reward.")],
    pool: Annotated[str, typer.Option("--pool", help="A pool of the run, or a new name with --hardware.")],
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="How many, on this machine.")] = 1,
    hardware: Annotated[
        str | None, typer.Option("--hardware", metavar="CLASS", help="Hardware class of a new pool.")
    ] = None,
) -> None:
    """Add workers to the running RUN, here: in a job of their own, in a shell, on another machine.

    They serve until the run ends, and leave in order when this command is told to stop (TERM, INT, USR2): exit code 0
    both times. 2: they cannot join as asked, the run is unharmed; 1: they failed again and again.
    """
    remember_stop_signals()
    import asyncio

    from rollart_hpc.launcher.failure import AttemptFailedError
    from rollart_hpc.launcher.find_run import find_run
    from rollart_hpc.launcher.join import join_run
    from rollart_hpc.launcher.join_checks import check_request
    from rollart_hpc.observe.console import console

    request, screen = check_request(role, pool, hardware, workers), console()

    def note(text: str) -> None:
        screen.print(text, highlight=False, markup=False, soft_wrap=True)

    try:
        asyncio.run(join_run(find_run(run), request, note))
    except AttemptFailedError as error:
        raise AttemptFailedError("\n".join(filter(None, (str(error), error.details)))) from error
