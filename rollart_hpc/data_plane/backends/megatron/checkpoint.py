"""Checkpoints of a Megatron model with its optimizer and random states (torch.distributed.checkpoint format).

Invariants:
- A checkpoint is a new directory; `metadata.json`, written last, marks it as complete.
- It can be loaded under another layout (tensor, pipeline, data parallel) than it was saved under; under the
  same one training goes on bit for bit.
- Nothing is forked: the files are written by the calling thread. Megatron's own writer starts processes, which
  a process with threads, CUDA or a network client must not do.

Saving has two parts, `snapshot` (collective, reads the model) and `Snapshot.write` (files, then collective
commit); an asynchronous save would run the first half of the second part in a thread.
"""

from __future__ import annotations

import queue
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

from rollart_hpc.errors import CheckpointError

T = TypeVar("T")

_MARKER = "metadata.json"
_OPTIMIZER_FORMAT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """What a checkpoint holds, as objects of the running trainer."""

    model: Any
    """GPTModel, unwrapped."""
    optimizer: Any
    """Megatron's optimizer over distributed shards."""

    def sharded(self, *, loading: bool, with_random_states: bool) -> dict[str, Any]:
        """Megatron's description of which part of which tensor this rank holds."""
        _prime(self.optimizer)
        model = self.model.sharded_state_dict(metadata=_OPTIMIZER_FORMAT)
        with _padding_counted(self.optimizer):
            optimizer = self.optimizer.sharded_state_dict(model, is_loading=loading, metadata=_OPTIMIZER_FORMAT)
        random_states = {"random_states": _random_states()} if with_random_states else {}
        return {"model": model, "optimizer": optimizer, **random_states}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint that is planned but not yet written."""

    directory: Path
    request: Any

    def write(self) -> None:
        """Writes this rank's files, waits for all ranks and commits; collective.

        Raises:
            CheckpointError: a rank could not write, seen by every rank; nothing is committed.
        """
        failures = [failure for failure in _gather(write_files(self.request)) if failure]
        if failures:
            raise CheckpointError(f"{self.directory} could not be written: {'; '.join(failures)}")
        for finalize in self.request.finalize_fns:
            finalize()


def snapshot(state: TrainerState, directory: Path) -> Snapshot:
    """Plans a checkpoint in a new directory; collective.

    Raises:
        CheckpointError: the directory exists and is not empty, seen by every rank.
    """
    occupied = directory.exists() and any(directory.iterdir())
    if any(_gather(occupied)):
        raise CheckpointError(
            f"{directory} is not empty; a checkpoint is written to a new directory, never over another"
        )
    directory.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    # Where Megatron's writer reports its results; it would otherwise start a manager process for it.
    cast(Any, filesystem_async)._results_queue = queue.Queue()
    request = dist_checkpointing.save(
        state.sharded(loading=False, with_random_states=True),
        str(directory),
        async_sharded_save=True,
        content_metadata={**_OPTIMIZER_FORMAT, "layout": _layout()},
    )
    return Snapshot(directory, request)


def write_files(request: Any) -> str:
    """Writes this rank's part of a planned checkpoint to disk; not collective, safe in any thread.

    Returns:
        What went wrong, or nothing.
    """
    if request.async_fn is None:
        return ""
    transforms, _use_object_store = request.async_fn.args
    _rank, _buckets, results = request.async_fn_args
    written = dict[int, Any]()
    for number, bucket in enumerate(request.preload_fn()):
        outcome, open_buckets = queue.Queue[Any](), queue.Queue[int]()
        open_buckets.put(number)
        FileSystemWriterAsync.write_preloaded_data(
            transforms, number, bucket, cast(Any, outcome), cast(Any, open_buckets), use_fsync=True
        )
        _, written[number] = outcome.get_nowait()
        if isinstance(written[number], Exception):
            return f"rank {dist.get_rank()}: {written[number]}"
    results.put(written)
    return ""


def load(state: TrainerState, directory: Path) -> None:
    """Loads a complete checkpoint into the model and the optimizer; collective.

    Random states are only loaded under the layout that they were saved under; no other layout has a
    generator for each of them.

    Raises:
        CheckpointError: it is not complete, or it belongs to another model.
    """
    if not (directory / _MARKER).exists():
        raise CheckpointError(f"{directory} is not a complete checkpoint: it has no {_MARKER}")
    try:
        content = cast(dict[str, Any], dist_checkpointing.load_content_metadata(str(directory)))
        sharded = state.sharded(loading=True, with_random_states=content["layout"] == _layout())
        loaded = cast(dict[str, Any], dist_checkpointing.load(sharded, str(directory)))
    except (CheckpointingException, KeyError, OSError) as error:
        raise CheckpointError(f"{directory} does not fit this model: {error}") from error
    state.model.load_state_dict(loaded["model"])
    state.optimizer.load_state_dict(loaded["optimizer"])
    _separate_steps(state.optimizer)
    if "random_states" in loaded:
        _restore_random_states(loaded["random_states"])


def _gather(value: T) -> list[T]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _layout() -> list[int]:
    return [
        mpu.get_tensor_model_parallel_world_size(),
        mpu.get_pipeline_model_parallel_world_size(),
        mpu.get_data_parallel_world_size(),
    ]


def _random_states() -> ShardedObject:
    states = {
        "cpu": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(),
        "tracker": cast(Any, tensor_parallel.get_cuda_rng_tracker()).get_states(),
    }
    shape = (mpu.get_pipeline_model_parallel_world_size(), mpu.get_tensor_model_parallel_world_size())
    position = (mpu.get_pipeline_model_parallel_rank(), mpu.get_tensor_model_parallel_rank())
    return ShardedObject("random_states", states, shape, position, replica_id=mpu.get_data_parallel_rank())


def _restore_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["cpu"])
    torch.cuda.set_rng_state(states["device"])
    cast(Any, tensor_parallel.get_cuda_rng_tracker()).set_states(states["tracker"])


@contextmanager
def _padding_counted(optimizer: Any) -> Generator[None]:
    """Megatron gathers optimizer state without the padding between buckets, then cuts it up with it.

    Every parameter after the first bucket is then silently shifted (a tied embedding under pipeline
    parallelism has a bucket of its own). Counting the padding as contents makes both sides agree.
    """
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    padded: list[tuple[Any, int]] = []
    for buffer in (buffer for each in chained for buffer in each.buffers):
        padded.append((buffer, buffer.numel))
        padded += [(bucket, bucket.grad_data.numel()) for bucket in buffer.buckets]
    unpadded = [holder.numel_unpadded for holder, _ in padded]
    for holder, size in padded:
        holder.numel_unpadded = size
    try:
        yield
    finally:
        for (holder, _), size in zip(padded, unpadded, strict=True):
            holder.numel_unpadded = size


def _torch_adams(optimizer: Any) -> list[torch.optim.Optimizer]:
    """The optimizers below Megatron's that are torch's own Adam; its state is laid out differently."""
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    return [each.optimizer for each in chained if isinstance(each.optimizer, torch.optim.Adam)]


def _prime(optimizer: Any) -> None:
    """torch's Adam has no state before its first step, and Megatron can neither save nor load none."""
    for adam in _torch_adams(optimizer):
        for parameter in (parameter for group in adam.param_groups for parameter in group["params"]):
            if not adam.state[parameter]:
                adam.state[parameter].update(
                    step=torch.tensor(0.0),
                    exp_avg=torch.zeros_like(parameter),
                    exp_avg_sq=torch.zeros_like(parameter),
                )


def _separate_steps(optimizer: Any) -> None:
    """Megatron gives all parameters one step tensor, which torch's Adam would count up once for each."""
    for adam in _torch_adams(optimizer):
        for parameter_state in adam.state.values():
            parameter_state["step"] = parameter_state["step"].clone()
