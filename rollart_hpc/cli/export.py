"""``rollart-hpc export``: a checkpoint as a Hugging Face model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="New directory for the model.")],
    step: Annotated[int | None, typer.Option("--step", help="Step of the checkpoint; the newest when absent.")] = None,
) -> None:
    """Write the model of one of RUN's checkpoints to DIR, loadable by transformers and vLLM."""
    from rollart_hpc.control_plane.checkpoint import damaged_parts, find_newest, find_step
    from rollart_hpc.data_plane.export import export_model
    from rollart_hpc.errors import CheckpointError
    from rollart_hpc.launcher.run_directory import read_config

    config = read_config(directory)
    found = find_newest(directory) if step is None else find_step(directory, step)
    if found is None:
        raise CheckpointError(f"{directory}: there is no complete checkpoint yet; there is one at the run's end")
    if damaged := damaged_parts(found):
        raise CheckpointError(f"{found.directory} is damaged: {', '.join(damaged)}; export another --step")
    export_model(config, found.trainer, to)
    print(f"step {found.state.step} of {directory} is in {to}")
