"""One rank of the Megatron trainer, the same class on CPU and GPU.

All methods block and are collective unless they say otherwise: every rank calls them in the same order, from
one thread. The loss of a step is the sum over all ranks' tokens of loss weight times policy loss; no rank,
micro-batch or stage averages anything, so gradients do not depend on the layout. Statistics are summed over
the ranks that hold the loss and are equal everywhere.

Consumes one `TrainBatch` per step (equal on the tensor and pipeline peers of a data parallel rank) and
produces weights by their Hugging Face names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import xxhash
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from rollart_hpc.algorithms.losses import policy_loss
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.megatron import checkpoint, packing, platform, ranks
from rollart_hpc.data_plane.backends.megatron.architecture import check_layout, read_architecture
from rollart_hpc.data_plane.backends.megatron.build import build_model
from rollart_hpc.data_plane.backends.megatron.checkpoint import PendingSave
from rollart_hpc.data_plane.backends.megatron.hf_weights import HfWeights
from rollart_hpc.data_plane.backends.megatron.logprobs import token_logprobs
from rollart_hpc.data_plane.backends.megatron.packing import MicroBatch
from rollart_hpc.data_plane.backends.megatron.statistics import StepSums
from rollart_hpc.errors import RollartError
from rollart_hpc.types import Float32Array, TrainBatch, TrainStats


class MegatronTrainer:
    """The model, the optimizer and one optimizer step; weights come from `load_hf` or `load`."""

    def __init__(
        self,
        config: RunConfig,
        *,
        rank: int,
        world_size: int,
        master_address: str,
        master_port: int,
        deadline_s: float,
    ) -> None:
        """Meets the other ranks and builds this rank's part of the model.

        Args:
            config: Model, layout and algorithm; ``model.path`` gives the architecture.
            rank: Of this process among the trainer's.
            world_size: tensor x pipeline x data parallel.
            master_address: Where rank 0 listens.
            master_port: Free on rank 0's host.
            deadline_s: Of the rendezvous and of every later collective.

        Raises:
            ConfigError: the model cannot be trained in this layout.
            WaitTimeout: not all ranks came.
        """
        self._config = config
        self._architecture = read_architecture(config.model.path)
        check_layout(self._architecture, config.model, config.training)
        self._platform = platform.detect(rank, master_address)
        self._ranks = ranks.join(
            config.training,
            backend=self._platform.backend,
            rank=rank,
            world_size=world_size,
            address=master_address,
            port=master_port,
            deadline_s=deadline_s,
        )
        model_parallel_cuda_manual_seed(config.run.seed)
        self._model = build_model(config, self._architecture, self._platform, self._ranks)
        self._weights = HfWeights(self._model.gpt, self._architecture, self._ranks.tensor_group)
        self._state = checkpoint.TrainerState(model=self._model.gpt, optimizer=self._model.optimizer)
        self._rows = torch.zeros(0, dtype=torch.int64, device=self._platform.device)
        if self._ranks.is_last_stage:
            self._model.gpt.output_layer.register_forward_pre_hook(self._keep_needed_rows)

    @property
    def model(self) -> torch.nn.Module:
        """This rank's stage of the model, with its part of each tensor-parallel weight."""
        return self._model.gpt

    @property
    def data_rank(self) -> int:
        """Which share of every batch this rank trains."""
        return self._ranks.data_rank

    @property
    def pipeline_rank(self) -> int:
        """Which stage's weights this rank exports."""
        return self._ranks.pipeline_rank

    @property
    def is_publisher(self) -> bool:
        """Whether this rank stands for its pipeline stage when weights are published."""
        return self._ranks.tensor_rank == 0 and self._ranks.data_rank == 0

    def load_hf(self, directory: Path) -> None:
        """Takes the weights of a Hugging Face directory; the optimizer's moments stay as they are.

        Raises:
            ConfigError: files or tensors are missing or of another shape.
        """
        self._weights.load(directory)
        self._model.optimizer.reload_model_params()

    def train_step(self, batch: TrainBatch) -> TrainStats:
        """One optimizer step on this rank's share of a batch, which may be empty.

        Raises:
            ValueError: the batch's arrays contradict each other or do not fit the model.
            RollartError: the loss or the gradient is not finite; the weights must not be used then.
        """
        started = time.perf_counter()
        learning_rate = self._set_learning_rate(batch.step)
        sums = self.accumulate_gradients(batch)
        accumulated = time.perf_counter()
        if not np.isfinite(sums.loss):
            raise RollartError(f"the loss of step {batch.step} is {sums.loss}; the step was not applied")
        _, grad_norm, _ = self._model.optimizer.step()
        if not np.isfinite(grad_norm):
            raise RollartError(f"the gradient norm of step {batch.step} is {grad_norm}; go back to a checkpoint")
        seconds = self._slowest(forward_backward=accumulated - started, optimizer=time.perf_counter() - accumulated)
        return sums.statistics(
            step=batch.step, grad_norm=float(grad_norm), learning_rate=learning_rate, seconds=seconds
        )

    def accumulate_gradients(self, batch: TrainBatch) -> StepSums:
        """Forward and backward over all micro-batches; gradients are left in the model's buffers."""
        packing.check_batch(batch, vocab_size=self._architecture.vocab_size, max_context=self._config.model.max_context)
        groups = packing.split_sequences(batch.lengths, self._config.training.micro_batch_tokens)
        # Stages and reductions run once per micro-batch, so data parallel peers must agree on their number.
        num_micro_batches = self._largest(len(groups))
        groups += [np.zeros(0, np.int64)] * (num_micro_batches - len(groups))
        self._model.wrapped.zero_grad_buffer()
        self._model.optimizer.zero_grad()
        results = self._run([packing.pack(batch, sequences, self._platform.device) for sequences in groups], self._loss)
        return StepSums.reduced(results, counts=self._ranks.counts_in_statistics, device=self._platform.device)

    def export_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors of this pipeline stage under Hugging Face names, in an order that never changes.

        Every rank must exhaust the iterator. A tensor may be a view of the live weight.
        """
        return self._weights.export()

    def weight_digest(self) -> str:
        """A digest of all weights by name; equal on every rank and for every layout."""
        digests = {
            name: xxhash.xxh3_128_hexdigest(cast(Any, tensor.cpu().contiguous().view(torch.uint8).numpy()))
            for name, tensor in self.export_weights()
        }
        stages: list[Any] = [None] * self._ranks.world_size
        dist.all_gather_object(stages, digests)
        everything = sorted({item for stage in stages for item in stage.items()})
        return xxhash.xxh3_64_hexdigest(repr(everything).encode())

    def probe_logprobs(self, token_ids: list[int]) -> Float32Array:
        """The logprobs, without temperature, of tokens 1.. of a short sequence; equal on every rank."""
        micro_batch = packing.pack(packing.whole_sequence(token_ids), np.zeros(1, np.int64), self._platform.device)
        results = self._run([micro_batch], self._logprobs_only, forward_only=True)
        probe = results[0] if results else torch.empty(len(token_ids) - 1, device=self._platform.device)
        dist.broadcast(probe, src=self._ranks.loss_source)
        return probe.cpu().numpy()

    def begin_save(self, directory: Path) -> PendingSave:
        """Copies model, optimizer and random states to host memory, for a checkpoint in a new directory.

        Raises:
            CheckpointError: the directory holds something already, or cannot be made; on every rank.
        """
        return checkpoint.begin_save(self._state, directory)

    def save(self, directory: Path) -> None:
        """Writes a checkpoint while training waits.

        Raises:
            CheckpointError: it could not be written; on every rank.
        """
        checkpoint.save(self._state, directory)

    def load(self, directory: Path) -> None:
        """Goes on from a checkpoint, also one that was saved under another layout.

        Raises:
            CheckpointError: it is incomplete or belongs to another model.
        """
        checkpoint.load(self._state, directory)

    def close(self) -> None:
        """Leaves the process groups; local, waits for nobody."""
        ranks.leave()

    def _run(self, micro_batches: list[MicroBatch], loss: Any, *, forward_only: bool = False) -> list[Any]:
        """Drives the micro-batches through the pipeline; results exist on the last stage only."""
        return get_forward_backward_func()(
            forward_step_func=partial(self._forward, loss),
            data_iterator=iter(micro_batches),
            model=[self._model.wrapped],
            num_microbatches=len(micro_batches),
            seq_length=self._config.training.micro_batch_tokens,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _forward(self, loss: Any, micro_batches: Iterator[MicroBatch], model: Any) -> tuple[torch.Tensor, Any]:
        micro_batch = next(micro_batches)
        self._rows = micro_batch.rows
        output = model(micro_batch.token_ids, micro_batch.position_ids, None, packed_seq_params=micro_batch.packed)
        return output, partial(loss, micro_batch)

    def _keep_needed_rows(self, _layer: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Before the output layer: [T, 1, H] to [R, 1, H]."""
        hidden, *rest = inputs
        return hidden.index_select(0, self._rows), *rest

    def _loss(self, micro_batch: MicroBatch, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, StepSums]:
        algorithm = self._config.algorithm
        logprobs, entropy = self._logprobs(micro_batch, logits, self._config.generation.temperature)
        token = policy_loss(
            logprobs,
            micro_batch.sampler_logprobs,
            micro_batch.advantages,
            correction=algorithm.correction,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            importance_cap=algorithm.importance_cap,
        )
        loss = (micro_batch.loss_weights * token.loss).sum()
        uncounted = torch.zeros((), dtype=torch.int32, device=loss.device)
        return loss, uncounted, StepSums.of(micro_batch, token, logprobs.detach(), entropy, loss.detach())

    def _logprobs_only(self, micro_batch: MicroBatch, logits: torch.Tensor, **_kwargs: Any) -> torch.Tensor:
        return self._logprobs(micro_batch, logits, 1.0)[0].detach()

    def _logprobs(
        self, micro_batch: MicroBatch, logits: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(
            logits[0],
            micro_batch.targets,
            temperature=temperature,
            vocab_size=self._architecture.vocab_size,
            group=self._ranks.tensor_group,
        )

    def _set_learning_rate(self, step: int) -> float:
        training = self._config.training
        learning_rate = training.learning_rate * min(1.0, (step + 1) / max(1, training.warmup_steps))
        for group in self._model.optimizer.param_groups:
            group["lr"] = learning_rate
        return learning_rate

    def _largest(self, count: int) -> int:
        counts = torch.tensor(count, device=self._platform.device)
        dist.all_reduce(counts, op=dist.ReduceOp.MAX, group=self._ranks.data_group)
        return max(1, int(counts))

    def _slowest(self, **seconds: float) -> dict[str, float]:
        slowest = torch.tensor(list(seconds.values()), dtype=torch.float64, device=self._platform.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return dict(zip(seconds, slowest.tolist(), strict=True))
