"""A trainer's checkpoint as a model directory in Hugging Face format."""

from __future__ import annotations

import shutil
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.ports import free_port

_DEADLINE_S = 60.0
_WEIGHTS = "model.safetensors"
_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab*",
    "merges.txt",
)


def export_model(config: RunConfig, checkpoint: Path, directory: Path) -> None:
    """Writes the checkpoint's weights, with the initial model's config and tokenizer, to a new directory.

    The layout that the run was trained with does not matter: one rank loads it.

    Raises:
        ConfigError: the directory exists, or its file system cannot take it.
        CheckpointError: the checkpoint cannot be loaded.
    """
    if directory.exists():
        raise ConfigError(f"--to {str(directory)!r} exists already; choose a new directory")
    from safetensors.torch import save_file

    from rollart_hpc.data_plane.backends.megatron.trainer import MegatronTrainer

    one_rank = config.model_copy(
        update={
            "training": config.training.model_copy(
                update={"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}
            )
        }
    )
    trainer = MegatronTrainer(
        one_rank, rank=0, world_size=1, master_address="127.0.0.1", master_port=free_port(), deadline_s=_DEADLINE_S
    )
    try:
        trainer.load(checkpoint)
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in trainer.export_weights()}
    finally:
        trainer.close()
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for pattern in _COPIED:
        for path in config.model.path.glob(pattern):
            shutil.copy(path, unfinished / path.name)
    save_file(tensors, str(unfinished / _WEIGHTS), metadata={"format": "pt"})
    unfinished.rename(directory)
