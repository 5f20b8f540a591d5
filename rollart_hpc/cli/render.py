"""``rollart-hpc render``: the batch script of a run, without Slurm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rollart_hpc.cli.run import SetOption, warn

SiteOption = Annotated[
    Path | None,
    typer.Option(
        "--site",
        metavar="FILE",
        help="The cluster's profile (TOML). When absent: $ROLLART_SITE, ~/.config/rollart-hpc/site.toml, "
        "/etc/rollart-hpc/site.toml; /dev/null for none.",
    ),
]


def render_command(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    overrides: SetOption = None,
    site: SiteOption = None,
) -> None:
    """Print the batch script of CONFIG: what `submit` would give to sbatch, from the current directory.

    Needs no Slurm here. The script holds the whole config; `sbatch FILE` runs it unchanged, from any directory.
    Exit code 2: the input is wrong.
    """
    from rollart_hpc.config.site import load_on_site
    from rollart_hpc.slurm.script.allocation import oddities
    from rollart_hpc.slurm.script.render import render

    settings, remarks = load_on_site(config, overrides or [], site)
    script = render(settings, python=sys.executable, directory=Path.cwd())
    warn([*remarks, *oddities(settings)])
    print(script, end="")
