"""``rollart-hpc run`` and ``rollart-hpc resume``: a whole run on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollart_hpc.config.schema import RunConfig

EXIT_STOPPED = 75
"""The run was stopped in order and can be resumed (EX_TEMPFAIL)."""
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. rollout.alpha=0.")
]


def run(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    overrides: SetOption = None,
) -> None:
    """Run CONFIG on this machine: every process, from the bus to the trainer.

    Exit code 0: done; 2: the input is wrong, nothing was started; 75: stopped in order, resume it; 1: failed.
    """
    from rollart_hpc.config.load import load_config
    from rollart_hpc.launcher import run_directory
    from rollart_hpc.launcher.preflight import check_run

    settings = load_config(config, overrides or [])
    warn(check_run(settings))
    run_directory.create(settings)
    _lead(settings)


def resume(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")],
    overrides: SetOption = None,
) -> None:
    """Go on with the run in RUN from its newest complete checkpoint."""
    from rollart_hpc.config.load import override_config
    from rollart_hpc.control_plane.checkpoint import find_newest
    from rollart_hpc.errors import ConfigError
    from rollart_hpc.launcher import run_directory
    from rollart_hpc.launcher.preflight import check_run

    for override in overrides or []:
        if override.startswith(("run.directory", "run.name")):
            raise ConfigError(f"--set {override}: a run keeps its name and directory; leave it out")
    settings = override_config(run_directory.read_config(directory), overrides or [])
    warn(check_run(settings, resuming=True))
    newest = find_newest(directory)
    if newest is not None and newest.state.step >= settings.run.steps:
        done = f"{newest.state.step} of {settings.run.steps} steps are trained"
        print(f"{directory}: nothing to do, {done}; train on with --set run.steps=N")
        return
    _lead(settings)


def warn(oddities: list[str]) -> None:
    """Prints what is odd about a configuration."""
    for oddity in oddities:
        print(f"warning: {oddity}", file=sys.stderr)


def _lead(config: RunConfig) -> None:
    import asyncio

    from rich.console import Console

    from rollart_hpc.launcher import run_directory
    from rollart_hpc.launcher.local import AttemptFailedError, LocalLeader
    from rollart_hpc.launcher.progress import ProgressView
    from rollart_hpc.observe.logs import log_to_stderr
    from rollart_hpc.observe.report import print_report

    log_to_stderr("leader")
    console = Console()
    directory = config.run.path()
    with run_directory.owned(directory):
        number = run_directory.next_attempt(directory)
        view = ProgressView(console, config.run.steps)
        view.note(f"run {config.run.name}, attempt {number}: {directory}")
        with view.shown():
            try:
                end = asyncio.run(LocalLeader(config, number, view).run_attempt())
            except AttemptFailedError as error:
                text = f"{error}\nlogs: {directory}/attempts/{number}/logs; go on with: rollart-hpc resume {directory}"
                raise AttemptFailedError(text) from error
    print_report(console, directory)
    if end.stopped:
        view.note(f"stopped; go on with: rollart-hpc resume {directory}")
        raise typer.Exit(EXIT_STOPPED)
