"""The training worker: one rank of the Megatron trainer, driven by the controller's calls.

Everything that touches the model, plain methods of a user's class included, runs in one thread, in the order of the
calls; uploads of weights and the writing of checkpoints run beside it, each in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
import numpy as np

from rollart_hpc.bus import codec
from rollart_hpc.bus.rendezvous import meet
from rollart_hpc.data_plane.declarations import Mode, register
from rollart_hpc.data_plane.plain_methods import run_in_thread
from rollart_hpc.data_plane.worker import Worker, WorkerContext
from rollart_hpc.errors import CheckpointError, WeightsError
from rollart_hpc.types import Bucket, Role, StoredBatch, TrainBatch, TrainStats
from rollart_hpc.weights.publisher import WeightPublisher
from rollart_hpc.weights.store import WeightStore

if TYPE_CHECKING:
    import torch

    from rollart_hpc.data_plane.backends.megatron.trainer import MegatronTrainer
    from rollart_hpc.data_plane.trainer import PendingSave, Trainer

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
        self._writes = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._trainer: Trainer | None = None
        self._save: PendingSave | None = None
        self._store: WeightStore | None = None
        self._publisher: WeightPublisher | None = None

    async def setup(self) -> None:
        """Meets the other ranks and builds the model; weights come with `restore`."""
        context = self.context
        rank = context.member.rank
        address, port = await meet(context.bus, "trainer", rank=rank, deadline_s=_RENDEZVOUS_DEADLINE_S)
        self._trainer = await self.in_thread(lambda: self.create_trainer(address, port))
        self.member = msgspec.structs.replace(self.member, group_rank=self._trainer.data_rank)
        self._store = await self.connect_store()
        if self._store is not None and self._trainer.is_publisher:
            self._publisher = WeightPublisher(
                self._store,
                run=context.config.run.name,
                attempt=context.attempt.number,
                rank=rank,
                bucket_mb=context.config.weights.bucket_mb,
            )

    def create_trainer(self, master_address: str, master_port: int) -> Trainer:
        """The trainer of this rank, which has met the others; called in the thread that alone touches the model."""
        from rollart_hpc.data_plane.backends.megatron.trainer import MegatronTrainer

        config = self.context.config
        return MegatronTrainer(
            config,
            rank=self.context.member.rank,
            world_size=config.training.world_size,
            master_address=master_address,
            master_port=master_port,
            deadline_s=_RENDEZVOUS_DEADLINE_S,
        )

    async def run(self) -> None:
        """Serves calls until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Leaves the process group; bounded by the process's own end."""
        trainer = self._trainer
        if trainer is not None:
            await self.in_thread(trainer.close)
        if self._publisher is not None:
            # An upload that nobody waits for any more still reads what is freed now.
            await asyncio.to_thread(self._uploads.shutdown)
            self._publisher.close()
        if self._store is not None:
            await asyncio.to_thread(self._store.close)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in the thread that alone touches the model, after what came before it.

        Plain methods run here, too: one that waits by `get` for what needs this thread is refused.
        """
        return await run_in_thread(self._thread, work, is_one_thread=True)

    @property
    def trainer(self) -> Trainer:
        """The trainer, for plain methods and `in_thread`; there from `setup` on."""
        if self._trainer is None:
            raise RuntimeError("the trainer is not set up")
        return self._trainer

    @property
    def model(self) -> torch.nn.Module:
        """This rank's part of the model, for the same."""
        return cast("MegatronTrainer", self.trainer).model

    @register()
    async def restore(self, checkpoint: str) -> None:
        """Loads a checkpoint's trainer part, or the initial model when the path is empty."""
        trainer = self.trainer
        if checkpoint:
            await self.in_thread(lambda: trainer.load(Path(checkpoint)))
        else:
            await self.in_thread(lambda: trainer.load_hf(self.context.config.model.path))

    @register(Mode.SPLIT_DP)
    async def train_step(self, batch: TrainBatch | StoredBatch) -> TrainStats:
        """One optimizer step on this data-parallel rank's share."""
        trainer = self.trainer
        if isinstance(batch, StoredBatch):
            batch = await asyncio.to_thread(self._fetch, batch.key)
        return await self.in_thread(lambda: trainer.train_step(batch))

    @register()
    async def snapshot(self, version: int) -> None:
        """Copies the weights to host memory, so that training may go on while they are uploaded."""
        trainer, publisher = self.trainer, self._publisher

        def copy() -> None:
            tensors = trainer.export_weights()
            if publisher is None:
                for _ in tensors:
                    pass
            else:
                publisher.snapshot(version, tensors)

        await self.in_thread(copy)

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
        trainer = self.trainer
        logprobs = await self.in_thread(lambda: trainer.probe_logprobs(token_ids))
        return np.asarray(logprobs, np.float32).tolist()

    @register()
    async def begin_save(self, directory: str) -> str:
        """Copies the trainer's state to host memory for a checkpoint in a new directory; collective.

        Training may go on when it returns.

        Returns:
            Why there can be no checkpoint, the same on every rank; empty when `write_save` is next.
        """
        trainer = self.trainer
        try:
            self._save = await self.in_thread(lambda: trainer.begin_save(Path(directory)))
        except CheckpointError as error:
            return str(error)
        return ""

    @register()
    async def write_save(self) -> str:
        """Writes this rank's files of the copy and makes them durable, beside training; not collective.

        Returns:
            What went wrong; empty when `commit_save` is next.
        """
        return await asyncio.get_running_loop().run_in_executor(self._writes, self._begun().write)

    @register()
    async def commit_save(self) -> str:
        """Finalizes the trainer's part once every rank has written; collective.

        Returns:
            What went wrong, the same on every rank; empty when the part is complete.
        """
        begun, self._save = self._begun(), None
        return await self.in_thread(begun.commit)

    @register()
    async def discard_save(self) -> None:
        """Forgets the copy, written or not; not collective."""
        self._save = None

    def _fetch(self, key: str) -> TrainBatch:
        if self._store is None:
            raise WeightsError("this attempt has no weight store")
        return codec.decode(self._store.get_bytes(key), TrainBatch)

    def _begun(self) -> PendingSave:
        if self._save is None:
            raise RuntimeError("no save was begun")
        return self._save
