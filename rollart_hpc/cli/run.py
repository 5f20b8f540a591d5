"""``rollart-hpc run`` and ``rollart-hpc resume``: a whole run on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollart_hpc.data_plane.stop_signals import EXIT_STOPPED

if TYPE_CHECKING:
    from rollart_hpc.config.schema import RunConfig

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
    """Go on with the run in RUN from its newest complete checkpoint.

    What --set changes is listed and recorded; what would make another run of it is refused with exit code 2.
    """
    from rollart_hpc.launcher import run_directory
    from rollart_hpc.launcher.config_changes import describe
    from rollart_hpc.launcher.lead import check_unfinished
    from rollart_hpc.launcher.preflight import check_run

    settings, changes = run_directory.read_overridden(directory, overrides or [])
    warn(check_run(settings, resuming=True))
    check_unfinished(settings)
    for key, values in changes.items():
        print(f"changed: {describe(key, values)}", flush=True)
    _lead(settings, changes)


def warn(oddities: list[str]) -> None:
    """Prints what is odd about a configuration."""
    for oddity in oddities:
        print(f"warning: {oddity}", file=sys.stderr)


def _lead(config: RunConfig, changes: dict[str, list[Any]] | None = None) -> None:
    from rollart_hpc.launcher.lead import lead
    from rollart_hpc.launcher.starters import LocalStarter

    directory = config.run.path()
    advice = f"go on with: rollart-hpc resume {shlex.quote(str(directory))}"
    if lead(config, LocalStarter(), advice=advice, changes=changes or {}):
        raise typer.Exit(EXIT_STOPPED)
