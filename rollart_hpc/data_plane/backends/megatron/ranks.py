"""The process groups of a trainer: tensor, pipeline and data parallel ranks (Megatron's parallel state)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from megatron.core import parallel_state as mpu

from rollart_hpc.config.schema import TrainingSection
from rollart_hpc.errors import RollartError, WaitTimeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Where this process stands in the trainer's layout."""

    world_size: int
    tensor_rank: int
    pipeline_rank: int
    data_rank: int
    is_first_stage: bool
    is_last_stage: bool
    loss_source: int
    """Global rank of a process that holds the last stage's results."""

    @property
    def tensor_group(self) -> dist.ProcessGroup:
        """Ranks that hold the other parts of the same layers."""
        return cast(dist.ProcessGroup, mpu.get_tensor_model_parallel_group())

    @property
    def data_group(self) -> dist.ProcessGroup:
        """Ranks that hold the same part for other sequences."""
        return cast(dist.ProcessGroup, mpu.get_data_parallel_group())

    @property
    def counts_in_statistics(self) -> bool:
        """Whether this rank's results are counted: one of the tensor parallel peers of the last stage."""
        return self.is_last_stage and self.tensor_rank == 0


def join(
    layout: TrainingSection, *, backend: str, rank: int, world_size: int, address: str, port: int, deadline_s: float
) -> Ranks:
    """Meets the other ranks and forms the groups.

    Collectives have the same deadline, those within a group rounded up to whole minutes.

    Raises:
        WaitTimeout: not all ranks came in time.
        RollartError: the port is taken on rank 0's host.
    """
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=deadline_s),
        )
    except dist.DistError as error:
        if "server socket" in str(error):
            raise RollartError(f"rank 0 cannot listen on port {port}: {error}; choose a free one") from error
        others = f"{world_size - 1} other trainer ranks at {address}:{port}"
        raise WaitTimeout("the rendezvous", others, deadline_s) from error
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        distributed_timeout_minutes=max(1, math.ceil(deadline_s / 60)),
    )
    parallel_state: Any = mpu
    return Ranks(
        world_size=world_size,
        tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
        pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
        data_rank=parallel_state.get_data_parallel_rank(),
        is_first_stage=bool(parallel_state.is_pipeline_first_stage()),
        is_last_stage=bool(parallel_state.is_pipeline_last_stage()),
        # Megatron numbers tensor parallel ranks first and pipeline stages last.
        loss_source=world_size - layout.tensor_parallel * layout.data_parallel,
    )


def leave() -> None:
    """Dissolves the groups; local, waits for no other rank."""
    mpu.destroy_model_parallel()
    dist.destroy_process_group()
