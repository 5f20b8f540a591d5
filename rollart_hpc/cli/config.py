"""``rollart-hpc config``: what a configuration says, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollart_hpc.cli.run import SetOption, warn

app = typer.Typer(help="Check a run's configuration.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Check a run's configuration."""


@app.command("check")
def check(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    overrides: SetOption = None,
    show: Annotated[bool, typer.Option("--show", help="Print every value, defaults included.")] = False,
) -> None:
    """Check CONFIG and everything it names; exit code 2 lists what is wrong."""
    from rollart_hpc.config.load import load_config
    from rollart_hpc.launcher.preflight import check_run

    settings = load_config(config, overrides or [])
    warn(check_run(settings, resuming=True))
    if show:
        print(settings.model_dump_json(indent=2))
    else:
        quota = ", ".join(f"{count} of {task}" for task, count in settings.task_mix().of_batch(0).items())
        print(f"{config}: ok; {settings.run.steps} steps of {settings.rollout.groups_per_step} groups ({quota})")
