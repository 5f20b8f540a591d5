"""Weights on their way into an engine: checked against the checkpoint, handed to other processes in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_hpc.errors import WeightsError

if TYPE_CHECKING:
    import torch

_SHARED_MEMORY = Path("/dev/shm")


def checkpoint_shapes(model_path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in the model directory's safetensors files, by name."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(model_path.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            shapes.update((name, tuple(file.get_slice(name).get_shape())) for name in file.keys())  # noqa: SIM118
    return shapes


def require_complete(tensors: Sequence[tuple[str, torch.Tensor]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses a set of weights that would leave a part of the model at its old values.

    Args:
        tensors: what is to be loaded.
        shapes: what the checkpoint has, by name.

    Raises:
        WeightsError: tensors are missing or have a wrong shape.
    """
    given = {name: tuple(tensor.shape) for name, tensor in tensors}
    if missing := sorted(shapes.keys() - given.keys()):
        raise WeightsError(
            f"{len(missing)} of the model's {len(shapes)} tensors are missing, the first is {missing[0]}; "
            "an update needs the whole model"
        )
    for name, shape in shapes.items():
        if given[name] != shape:
            raise WeightsError(f"{name} has shape {given[name]}, the model's is {shape}")


@contextmanager
def weight_file(tensors: Sequence[tuple[str, torch.Tensor]]) -> Generator[Path]:
    """A safetensors file in shared memory that lives as long as the context."""
    from safetensors.torch import save_file

    directory = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="rollart-weights-", dir=directory) as folder:
        path = Path(folder) / "weights.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors}, path)
        yield path
