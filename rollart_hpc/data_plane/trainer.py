"""The interface of a trainer: one rank's part of the model and the optimizer, as the training worker drives it.

All methods but `PendingSave.write` are called in one thread; those that are collective, on all ranks at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rollart_hpc.types import Float32Array, TrainBatch, TrainStats

if TYPE_CHECKING:
    import torch


class PendingSave(Protocol):
    """A checkpoint in host memory, with nothing that training changes."""

    def write(self) -> str:
        """Writes this rank's files and makes them durable, in any thread; returns what went wrong, if anything."""
        ...

    def commit(self) -> str:
        """Makes the written parts one checkpoint, collective; returns what went wrong, if anything."""
        ...


class Trainer(Protocol):
    """One rank."""

    @property
    def data_rank(self) -> int:
        """Its data-parallel rank."""
        ...

    @property
    def is_publisher(self) -> bool:
        """Whether this rank's weights are published."""
        ...

    def load_hf(self, directory: Path) -> None:
        """Loads a model in Hugging Face format; collective."""
        ...

    def load(self, directory: Path) -> None:
        """Loads a checkpoint's trainer part; collective."""
        ...

    def train_step(self, batch: TrainBatch) -> TrainStats:
        """One optimizer step on this data-parallel rank's share; collective."""
        ...

    def export_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights by the checkpoint's names, one after the other; collective."""
        ...

    def probe_logprobs(self, token_ids: list[int]) -> Float32Array:
        """[T - 1] logprobs of tokens 1.. of a sequence of T under the current weights; collective."""
        ...

    def begin_save(self, directory: Path) -> PendingSave:
        """Copies the state to host memory for a checkpoint in a new directory; collective.

        Raises:
            CheckpointError: there can be none; on every rank.
        """
        ...

    def close(self) -> None:
        """Leaves the other ranks."""
        ...
