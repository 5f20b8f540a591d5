"""Checkpoints of a Megatron model with its optimizer and random states (torch.distributed.checkpoint format).

Invariants:
- A checkpoint is a new directory; `metadata.json`, written last, marks it as complete.
- It can be loaded under another layout (tensor, pipeline, data parallel) than it was saved under; under the
  same one training goes on bit for bit.
- Nothing is forked: the files are written by the calling thread. Megatron's own writer starts processes, which
  a process with threads, CUDA or a network client must not do.

Saving has three phases: `begin_save` (collective: plans, and copies everything to host memory),
`PendingSave.write` (this rank's files, in any thread, while training goes on) and `PendingSave.commit` (collective).
Whatever a disk does in one of them is an answer on every rank, never an exception on one that others wait for.
"""

from __future__ import annotations

import io
import json
import os
import queue
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.core import CheckpointingConfig, CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint import filesystem

from rollart_hpc.data_plane.backends.megatron import optimizer_state
from rollart_hpc.errors import CheckpointError

T = TypeVar("T")

_MARKER = "metadata.json"
_FORMAT, _FORMAT_VERSION = "torch_dist", 1
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
        optimizer_state.prime(self.optimizer)
        model = self.model.sharded_state_dict(metadata=_OPTIMIZER_FORMAT)
        with (
            optimizer_state.padding_counted(self.optimizer),
            nullcontext() if loading else optimizer_state.gathered_at_once(self.optimizer),
        ):
            optimizer = self.optimizer.sharded_state_dict(model, is_loading=loading, metadata=_OPTIMIZER_FORMAT)
        random_states = {"random_states": _random_states()} if with_random_states else {}
        return {"model": model, "optimizer": optimizer, **random_states}


class PendingSave:
    """A checkpoint in host memory, with nothing that training changes; see the module for its three phases."""

    def __init__(self, directory: Path, writer: FileSystemWriterAsync, metadata: Any, common: bytes) -> None:
        """Made by `begin_save`."""
        self.directory = directory
        self._writer, self._metadata, self._common = writer, metadata, common
        self._results = list[Any]()

    def write(self) -> str:
        """Writes this rank's files, makes them durable and frees the copies; not collective, safe in any thread.

        Returns:
            What went wrong; nothing when `commit` is next.
        """
        buckets = self._writer.write_buckets or []
        try:
            for path, key, (objects, tensors) in buckets:
                with Path(path).open("wb") as file:
                    self._results += [self._write_item(file, data, item, key) for item, data in (*objects, *tensors)]
                    file.flush()
                    os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:
            return f"rank {dist.get_rank()}: {_reason(error)}"
        finally:
            buckets.clear()
        return ""

    def commit(self) -> str:
        """Writes what says where everything is, the marker last; collective.

        Returns:
            What went wrong, the same on every rank; nothing when the checkpoint is complete.
        """
        results: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(self._results, results)
        failure = ""
        if results is not None:
            try:
                _write_durably(self.directory / COMMON_STATE_FNAME, self._common)
                self._writer.finish(self._metadata, results)
                format_written = asdict(CheckpointingConfig(_FORMAT, _FORMAT_VERSION))
                _write_durably(self.directory / _MARKER, json.dumps(format_written).encode())
            except (OSError, RuntimeError) as error:
                failure = f"rank 0: {_reason(error)}"
        return _gather(failure)[0]

    def _write_item(self, file: BinaryIO, data: Any, item: Any, key: str) -> Any:
        write: Any = cast(Any, filesystem)._write_item
        return write(self._writer.transforms, file, data, item, key, filesystem.SerializationFormat.TORCH_SAVE)


class _PlanOnly(TorchDistSaveShardedStrategy):
    """Megatron's strategy up to the plan; its own writing starts processes and raises on one rank alone."""

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> Any:
        return save_state_dict_ret


def begin_save(state: TrainerState, directory: Path) -> PendingSave:
    """Plans a checkpoint in a new directory and copies everything to host memory; collective.

    Raises:
        CheckpointError: the directory is not empty or cannot be made, seen by every rank.
    """
    if failures := [failure for failure in _gather(_make_empty(directory)) if failure]:
        raise CheckpointError("; ".join(dict.fromkeys(failures)))
    content = {**_OPTIMIZER_FORMAT, "layout": _layout()}
    described = {**state.sharded(loading=False, with_random_states=True), "content_metadata": content}
    sharded, common = save_preprocess(described)
    # Where Megatron's writer would report its results; it otherwise starts a manager process for it.
    cast(Any, filesystem_async)._results_queue = queue.Queue()
    writer, metadata, _ = cast(Any, _PlanOnly(_FORMAT, _FORMAT_VERSION)).async_save(sharded, directory)
    # The planner copies views only, and what it copied need not be copied again.
    live = {_address(part.data) for part in nested_values(sharded) if isinstance(part, ShardedTensor)}
    for _, _, (_, tensors) in writer.write_buckets:
        tensors[:] = [(item, tensor.to("cpu", copy=_address(tensor) in live)) for item, tensor in tensors]
    common_bytes = io.BytesIO()
    torch.save(common, common_bytes)
    return PendingSave(directory, writer, metadata, common_bytes.getvalue())


def save(state: TrainerState, directory: Path) -> None:
    """The three phases in a row; collective.

    Raises:
        CheckpointError: a rank could not write, seen by every rank; nothing is committed.
    """
    pending = begin_save(state, directory)
    failures = [failure for failure in _gather(pending.write()) if failure] or [pending.commit()]
    if any(failures):
        raise CheckpointError(f"{directory} could not be written: {'; '.join(failures)}")


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
    optimizer_state.separate_steps(state.optimizer)
    if "random_states" in loaded:
        _restore_random_states(loaded["random_states"])


def _make_empty(directory: Path) -> str:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        occupied = any(directory.iterdir())
    except OSError as error:
        return f"rank {dist.get_rank()}: {error}"
    return f"{directory} is not empty; a checkpoint is written to a new directory, never over another" * occupied


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.untyped_storage().data_ptr()


def _write_durably(path: Path, contents: bytes) -> None:
    with path.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())


def _reason(error: BaseException) -> str:
    """The disk's own words, also where torch wrapped them."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return str(cause or error)


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
