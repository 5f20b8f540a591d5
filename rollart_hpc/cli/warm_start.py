"""``rollart-hpc warm-start``: makes the tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer


def warm_start_command(
    directory: Annotated[Path, typer.Argument(help="Where the model goes; must not exist.")],
    seed: Annotated[int, typer.Option(help="Of weights, demonstrations and evaluation.")] = 0,
    any_text: Annotated[
        bool, typer.Option("--any-text", help="Random weights that read and write any text, a token a byte.")
    ] = False,
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps; 0 leaves random weights.")] = 300,
    task: Annotated[
        list[str] | None, typer.Option(help="A task to learn (frozen_lake, arithmetic); all when absent.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Sampled of each task to tell how well it plays.")] = 500,
) -> None:
    """Makes a tiny Qwen3 that plays FrozenLake and sums badly, for runs on one machine.

    It knows 47 words and characters. With --any-text it plays nothing, and any environment can be tried with it.
    """
    from rollart_hpc.warm_start.recipe import TASKS
    from rollart_hpc.warm_start.tiny_model import make_text_model, make_tiny_model

    if any_text:
        if task:
            raise typer.BadParameter("it does not go with --any-text, which makes a model that plays nothing")
        typer.echo(f"{directory}: {make_text_model(directory, seed=seed)} parameters")
        return

    def show(step: int, losses: Mapping[str, float]) -> None:
        if step % 30 == 0 or step == steps:
            typer.echo(f"step {step}/{steps}  loss " + "  ".join(f"{name} {loss:.3f}" for name, loss in losses.items()))

    report = make_tiny_model(
        directory, seed=seed, steps=steps, tasks=task or tuple(TASKS), eval_episodes=episodes, progress=show
    )
    for name, result in report.tasks.items():
        rates = f"success {result.success_rate:.3f}, reward {result.mean_reward:.3f}"
        typer.echo(f"{name}: {rates} ({result.num_episodes} episodes)")
    seconds = report.train_seconds + report.evaluate_seconds
    typer.echo(f"{directory}: {report.num_parameters} parameters, {seconds:.0f} s")
