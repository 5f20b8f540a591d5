"""The training worker: one rank of the Megatron trainer, driven by the controller's calls.

Everything that touches the model runs in one thread, in the order of the calls; uploads of weights run beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from rollart_hpc.bus import codec
from rollart_hpc.bus.rendezvous import meet
from rollart_hpc.data_plane.declarations import Mode, register
from rollart_hpc.data_plane.worker import Worker, WorkerContext
from rollart_hpc.errors import WeightsError
from rollart_hpc.types import Bucket, Role, StoredBatch, TrainBatch, TrainStats
from rollart_hpc.weights.publisher import WeightPublisher
from rollart_hpc.weights.store import WeightStore

if TYPE_CHECKING:
    from rollart_hpc.data_plane.backends.megatron.trainer import MegatronTrainer

_log = logging.getLogger(__name__)
_RENDEZVOUS_DEADLINE_S = 300.0

T = TypeVar("T")


class ActorTrainCls(Worker):
    """One trainer rank. Collective methods are called on all ranks at once."""

    role = Role.ACTOR_TRAIN

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._uploads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="upload")
        self._trainer: MegatronTrainer | None = None
        self._store: WeightStore | None = None
        self._publisher: WeightPublisher | None = None

    async def setup(self) -> None:
        """Meets the other ranks and builds the model; weights come with `restore`."""
        context = self.context
        rank, world_size = context.member.rank, context.config.training.world_size
        address, port = await meet(context.bus, "trainer", rank=rank, deadline_s=_RENDEZVOUS_DEADLINE_S)

        def build() -> MegatronTrainer:
            from rollart_hpc.data_plane.backends.megatron.trainer import MegatronTrainer

            return MegatronTrainer(
                context.config,
                rank=rank,
                world_size=world_size,
                master_address=address,
                master_port=port,
                deadline_s=_RENDEZVOUS_DEADLINE_S,
            )

        self._trainer = await self._in_order(build)
        self.member = msgspec.structs.replace(self.member, group_rank=self._trainer.data_rank)
        if context.attempt.store is None:
            return
        self._store = await asyncio.to_thread(WeightStore.connect, context.attempt.store)
        if self._trainer.is_publisher:
            self._publisher = WeightPublisher(
                self._store,
                run=context.config.run.name,
                attempt=context.attempt.number,
                rank=rank,
                bucket_mb=context.config.weights.bucket_mb,
            )

    async def run(self) -> None:
        """Serves calls until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Leaves the process group; bounded by the process's own end."""
        trainer = self._trainer
        if trainer is not None:
            await self._in_order(trainer.close)
        if self._publisher is not None:
            self._publisher.close()
        if self._store is not None:
            self._store.close()

    @register()
    async def restore(self, checkpoint: str) -> None:
        """Loads a checkpoint's trainer part, or the initial model when the path is empty."""
        trainer = self._built()
        if checkpoint:
            await self._in_order(lambda: trainer.load(Path(checkpoint)))
        else:
            await self._in_order(lambda: trainer.load_hf(self.context.config.model.path))

    @register(Mode.SPLIT_DP)
    async def train_step(self, batch: TrainBatch | StoredBatch) -> TrainStats:
        """One optimizer step on this data-parallel rank's share."""
        trainer = self._built()
        if isinstance(batch, StoredBatch):
            batch = await asyncio.to_thread(self._fetch, batch.key)
        return await self._in_order(lambda: trainer.train_step(batch))

    @register()
    async def snapshot(self, version: int) -> None:
        """Copies the weights to host memory, so that training may go on while they are uploaded."""
        trainer, publisher = self._built(), self._publisher

        def copy() -> None:
            tensors = trainer.export_weights()
            if publisher is None:
                for _ in tensors:
                    pass
            else:
                publisher.snapshot(version, tensors)

        await self._in_order(copy)

    @register()
    async def upload(self) -> list[Bucket]:
        """Puts the snapshot into the weight store; the buckets of this rank, none where it publishes none."""
        if self._publisher is None:
            return []
        loop = asyncio.get_running_loop()
        return list(await loop.run_in_executor(self._uploads, self._publisher.upload))

    @register()
    async def probe(self, token_ids: list[int]) -> list[float]:
        """Logprobs of a short sequence's tokens 1.. under the current weights."""
        trainer = self._built()
        logprobs = await self._in_order(lambda: trainer.probe_logprobs(token_ids))
        return np.asarray(logprobs, np.float32).tolist()

    @register()
    async def save(self, directory: str) -> None:
        """Writes the trainer's part of a checkpoint into a new directory."""
        trainer = self._built()
        await self._in_order(lambda: trainer.save(Path(directory)))

    def _fetch(self, key: str) -> TrainBatch:
        if self._store is None:
            raise WeightsError("this attempt has no weight store")
        return codec.decode(self._store.get_bytes(key), TrainBatch)

    def _built(self) -> MegatronTrainer:
        if self._trainer is None:
            raise RuntimeError("the trainer is not set up")
        return self._trainer

    async def _in_order(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
