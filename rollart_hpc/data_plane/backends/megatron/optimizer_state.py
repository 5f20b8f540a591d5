"""What Megatron's distributed optimizer needs so that its state is saved whole, at once, and loaded right.

Written against megatron-core 0.16: reads its buffers, buckets and ranges.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

_STATE = ("param", "exp_avg", "exp_avg_sq")


@contextmanager
def padding_counted(optimizer: Any) -> Generator[None]:
    """Megatron gathers optimizer state without the padding between buckets, then cuts it up with it.

    Every parameter after the first bucket is then silently shifted (a tied embedding under pipeline
    parallelism has a bucket of its own). Counting the padding as contents makes both sides agree.
    """
    chained = _chained(optimizer)
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


@contextmanager
def gathered_at_once(optimizer: Any) -> Generator[None]:
    """Megatron copies the optimizer's state five times while it gathers it, and training waits for each."""
    for each in _chained(optimizer):
        each.get_parameter_state_dp_zero = partial(_gather_state, each)
    try:
        yield
    finally:
        for each in _chained(optimizer):
            del each.get_parameter_state_dp_zero


def _gather_state(optimizer: Any, **_how: bool) -> dict[Any, Any]:
    """What the method of that name returns to all data parallel ranks, in one copy where there is one of them."""
    group = optimizer.data_parallel_group
    everything: dict[Any, Any] = {"buckets_coalesced": True}
    for index, (buffer, ranges) in enumerate(zip(optimizer.buffers, optimizer.gbuf_ranges, strict=True)):
        [(dtype, bucket_ranges)] = ranges.items()
        world = {key: torch.zeros(buffer.numel_unpadded, dtype=torch.float32) for key in _STATE}
        start = 0
        for bucket, bucket_range in zip(buffer.buckets, bucket_ranges, strict=True):
            size, device = bucket.grad_data.numel(), bucket.grad_data.device
            targets = {key: world[key][start : start + size] for key in _STATE}
            start += size
            alone = group.size() == 1
            shards = (
                targets
                if alone
                else {key: torch.zeros(size // group.size(), dtype=torch.float32, device=device) for key in _STATE}
            )
            for parameter, at in bucket_range["param_map"].items():
                states = optimizer._get_main_param_and_optimizer_states(parameter)
                for key, shard in shards.items():
                    shard[at["gbuf_local"].start : at["gbuf_local"].end].copy_(states[key].detach())
            for key, shard in () if alone else shards.items():
                gathered = torch.empty(size, dtype=torch.float32, device=device)
                dist.all_gather(list(gathered.chunk(group.size())), shard, group=group)
                targets[key].copy_(gathered)
        everything[index] = {dtype: {**world, "numel_unpadded": buffer.numel_unpadded}}
    return everything


def _chained(optimizer: Any) -> list[Any]:
    return getattr(optimizer, "chained_optimizers", [optimizer])


def _torch_adams(optimizer: Any) -> list[torch.optim.Optimizer]:
    """The optimizers below Megatron's that are torch's own Adam; its state is laid out differently."""
    return [each.optimizer for each in _chained(optimizer) if isinstance(each.optimizer, torch.optim.Adam)]


def prime(optimizer: Any) -> None:
    """torch's Adam has no state before its first step, and Megatron can neither save nor load none."""
    for adam in _torch_adams(optimizer):
        for parameter in (parameter for group in adam.param_groups for parameter in group["params"]):
            if not adam.state[parameter]:
                adam.state[parameter].update(
                    step=torch.tensor(0.0),
                    exp_avg=torch.zeros_like(parameter),
                    exp_avg_sq=torch.zeros_like(parameter),
                )


def separate_steps(optimizer: Any) -> None:
    """Megatron gives all parameters one step tensor, which torch's Adam would count up once for each."""
    for adam in _torch_adams(optimizer):
        for parameter_state in adam.state.values():
            parameter_state["step"] = parameter_state["step"].clone()
