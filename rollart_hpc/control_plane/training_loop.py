"""The training loop: one optimizer step after the other, overlapped with rollout (paper section 6.2, Figure 9).

    get_batch ─▶ train_step ─▶ snapshot ─▶ get_batch ─▶ train_step ─▶ ...
                                  └─ upload, commit ─▶ WeightSync: suspend, update, resume ─▶ recompute & rollout

Consumes batches from the RolloutService; produces versions for WeightSync, checkpoints and metrics; waits for a
batch, for the trainers, and for the upload before; woken by each. The six steps of the paper's protocol happen in
its order around every version; the generation workers are updated as soon as a version is published instead of
when the next batch is complete, which trains on fresher tokens under the same bound (docs/adr).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane import checkpoint
from rollart_hpc.control_plane.batch import FormedBatch, form_batch
from rollart_hpc.control_plane.batch_transfer import BatchTransfer
from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.control_plane.rollout_service import RolloutService
from rollart_hpc.control_plane.run_statistics import RunStatistics
from rollart_hpc.control_plane.weight_sync import WeightSync
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.types import TrainStats
from rollart_hpc.weights.store import WeightStore

_log = logging.getLogger(__name__)
_CONFIRM_DEADLINE_S = 120.0


class TrainingLoop:
    """Trains to the configured step, or until it is asked to stop."""

    def __init__(
        self,
        config: RunConfig,
        *,
        trainers: Cluster[ActorTrainCls],
        scheduler: RolloutScheduler,
        rollout: RolloutService,
        weights: WeightSync,
        statistics: RunStatistics,
        store: WeightStore,
        attempt: int,
        on_step: Callable[[int, dict[str, Any]], None],
    ) -> None:
        self._config = config
        self._trainers, self._scheduler, self._rollout = trainers, scheduler, rollout
        self._weights, self._statistics, self._on_step = weights, statistics, on_step
        self._transfer = BatchTransfer(store, run=config.run.name, attempt=attempt)
        self._saved_step = -1
        self._stop = asyncio.Event()

    def request_stop(self) -> None:
        """Ends the loop at the next step boundary, with a checkpoint."""
        self._stop.set()

    async def run(self) -> None:
        """Trains; on return everything trained is checkpointed and, unless asked to stop, the last version confirmed.

        Raises:
            WaitTimeout: no trajectory, or no confirmation of the last version, within the deadline.
        """
        with self._statistics.phase("publish"):
            await self._weights.publish(self._scheduler.trainer_version)
        while self._scheduler.trainer_version < self._config.run.steps:
            groups = await self._next_batch()
            if groups is None:
                break
            await self._train_on(groups)
        await self._save()
        if self._stop.is_set():
            return
        with self._statistics.phase("publish"):
            await self._weights.wait_confirmed(self._scheduler.trainer_version, _CONFIRM_DEADLINE_S)

    async def _next_batch(self) -> list[Group] | None:
        """The next batch; None when the run is to stop, which interrupts the wait but never a train step."""
        with self._statistics.phase("get_batch"):
            getting = asyncio.ensure_future(self._rollout.get_batch())
            stopping = asyncio.ensure_future(self._stop.wait())
            try:
                await asyncio.wait({getting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                getting.cancel()
            return getting.result() if getting.done() else None

    async def _train_on(self, groups: list[Group]) -> None:
        step = self._scheduler.trainer_version
        formed = form_batch(
            groups, step=step, algorithm=self._config.algorithm, data_parallel=self._config.training.data_parallel
        )
        with self._statistics.phase("train_step"):
            stats = await self._train(formed)
        self._rollout.trained(groups)
        with self._statistics.phase("publish"):
            await self._weights.publish(step + 1)
        if (step + 1) % self._config.run.checkpoint_every == 0:
            await self._save()
        self._on_step(step + 1, self._statistics.trained(groups, formed, stats))

    async def _train(self, batch: FormedBatch) -> TrainStats:
        shares = await self._transfer.sendable(batch.shares)
        stats = await self._trainers.call(ActorTrainCls.train_step, shares)  # pyright: ignore[reportArgumentType]
        await self._transfer.trained()
        return stats[0]

    async def _save(self) -> None:
        step = self._scheduler.trainer_version
        if step == self._saved_step:
            return
        with self._statistics.phase("checkpoint"):
            directory = self._config.run.path()
            unfinished = await asyncio.to_thread(checkpoint.begin, directory, step)
            await self._trainers.call(ActorTrainCls.save, str(checkpoint.trainer_part(unfinished)))
            state = ControllerState(step=step, cursors=self._scheduler.cursors())
            await asyncio.to_thread(checkpoint.publish, unfinished, state)
        self._saved_step = step
        _log.info("checkpoint of step %d is complete", step)
