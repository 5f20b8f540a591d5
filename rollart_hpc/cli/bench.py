"""``rollart-hpc bench``: measurements beside the alternative, in the same run."""

from __future__ import annotations

import typer

from rollart_hpc.cli import (
    bench_checkpoint,
    bench_environments,
    bench_resets,
    bench_rewards,
    bench_rollout,
    bench_turns,
    bench_weights,
)

app = typer.Typer(help="Measure parts of the system beside their alternatives.", no_args_is_help=True)
app.command("resets")(bench_resets.bench_resets)
app.command("rewards")(bench_rewards.bench_rewards)
app.command("rollout")(bench_rollout.bench_rollout)
app.command("turns")(bench_turns.bench_turns)
app.command("weights")(bench_weights.bench_weights)
app.command("checkpoint")(bench_checkpoint.bench_checkpoint)
app.command("environments")(bench_environments.bench_environments)
