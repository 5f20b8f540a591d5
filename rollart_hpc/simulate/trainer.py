"""A trainer without a model that takes the time of one: what `ActorTrainCls` asks of its trainer.

One rank stands for all devices that train. The model learns nothing; its version counts its steps, and its
log-probabilities are those of `rollart_hpc.simulate.policy`, as the emulated engines have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollart_hpc.errors import CheckpointError
from rollart_hpc.simulate import policy
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.cost_model import TrainerCost, transfer_s
from rollart_hpc.types import Float32Array, TrainBatch, TrainStats

if TYPE_CHECKING:
    import torch

_FILE = "emulated.json"


@dataclass(frozen=True, slots=True)
class EmulatedSave:
    """A checkpoint that was begun: `write`, then `commit`."""

    directory: Path
    version: int

    def write(self) -> str:
        """Writes beside its name; returns what went wrong, nothing when `commit` is next."""
        try:
            self._unfinished.write_text(json.dumps({"version": self.version}))
        except OSError as error:
            return str(error)
        return ""

    def commit(self) -> str:
        """Completes it; returns what went wrong."""
        try:
            self._unfinished.replace(self.directory / _FILE)
        except OSError as error:
            return str(error)
        return ""

    @property
    def _unfinished(self) -> Path:
        return self.directory / f".{_FILE}"


class EmulatedTrainer:
    """Called from one thread, which its work holds; `busy_s` from any."""

    data_rank = 0
    is_publisher = True

    def __init__(self, *, clock: Clock, cost: TrainerCost, tokens_per_id: int, host_gb_s: float) -> None:
        """A trainer of version 0.

        Args:
            clock: of the emulation.
            cost: what a step takes.
            tokens_per_id: tokens that one id of a batch stands for.
            host_gb_s: from the devices' memory to the hosts', all links together.
        """
        self._clock, self._cost, self._tokens_per_id, self._host_gb_s = clock, cost, tokens_per_id, host_gb_s
        self._version = 0
        self._busy_s = 0.0
        self._works_since: float | None = None

    @property
    def busy_s(self) -> float:
        """Simulated seconds of train steps and copies so far."""
        since = self._works_since
        return self._busy_s + (0.0 if since is None else self._clock.now() - since)

    def load_hf(self, directory: Path) -> None:
        """Begins at version 0; nothing is read."""
        self._version = 0

    def load(self, directory: Path) -> None:
        """Goes on from a checkpoint.

        Raises:
            CheckpointError: it is not complete, or not one of an emulated trainer.
        """
        try:
            self._version = int(json.loads((directory / _FILE).read_text())["version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{directory} is no complete checkpoint of an emulated trainer: {error!r}") from error

    def train_step(self, batch: TrainBatch) -> TrainStats:
        """Takes the time of a step; what it reports is that of a model that stays as it is."""
        seconds = self._cost.step_s(len(batch.token_ids) * self._tokens_per_id)
        self._work(seconds)
        compared = batch.same_version > 0
        own = policy.logprobs(batch.token_ids[compared], self._version)
        gaps = np.abs(batch.sampler_logprobs[compared] - own).astype(np.float64)
        self._version += 1
        return TrainStats(
            step=batch.step,
            loss=0.0,
            grad_norm=0.0,
            learning_rate=0.0,
            clip_fraction=0.0,
            ratio_mean=1.0,
            entropy=0.0,
            num_tokens=int(np.count_nonzero(batch.loss_weights)),
            gap_sum=float(gaps.sum()),
            gap_max=float(gaps.max(initial=0.0)),
            gap_count=len(gaps),
            seconds={"forward_backward": seconds},
        )

    def export_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One tensor, the version, after the time in which the whole model is copied to the hosts."""
        import torch

        self._work(transfer_s(self._cost.model.weight_bytes, self._host_gb_s))
        yield "version", torch.tensor([float(self._version)])

    def probe_logprobs(self, token_ids: list[int]) -> Float32Array:
        """Log-probabilities of tokens 1.. of a sequence."""
        return policy.logprobs(np.asarray(token_ids[1:], np.int32), self._version)

    def begin_save(self, directory: Path) -> EmulatedSave:
        """Begins a checkpoint in a new directory.

        Raises:
            CheckpointError: the directory holds something already, or cannot be made.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            occupied = any(directory.iterdir())
        except OSError as error:
            raise CheckpointError(str(error)) from error
        if occupied:
            raise CheckpointError(f"{directory} is not empty; a checkpoint is written to a new directory")
        return EmulatedSave(directory, self._version)

    def close(self) -> None:
        """Nothing is held."""

    def _work(self, seconds: float) -> None:
        began = self._works_since = self._clock.now()
        self._clock.block(seconds)
        self._works_since = None
        self._busy_s += self._clock.now() - began
