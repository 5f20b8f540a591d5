"""``rollart-hpc bench``: measurements beside the alternative, in the same run."""

from __future__ import annotations

import typer

from rollart_hpc.cli import bench_turns, bench_weights

app = typer.Typer(help="Measure parts of the system beside their alternatives.", no_args_is_help=True)
app.command("turns")(bench_turns.bench_turns)
app.command("weights")(bench_weights.bench_weights)
