"""The training loop: one optimizer step after the other, overlapped with rollout (paper section 6.2, Figure 9).

    get_batch ─▶ train_step ─▶ snapshot ─▶ get_batch ─▶ train_step ─▶ ...
                                  └─ upload, commit ─▶ WeightSync: suspend, update, resume ─▶ recompute & rollout

Consumes batches from the RolloutService; produces versions for WeightSync, checkpoints and metrics; waits for a
batch, for the trainers, and for the upload before; woken by each. The six steps of the paper's protocol happen in
its order around every version (`rollart_hpc.control_plane.protocol`); the generation workers are updated as soon as
a version is published instead of when the next batch is complete, which trains on fresher tokens under the same bound
(docs/adr). Where the mode's transfer is blocking, the loop waits after each step until they have the version, as both
sides of a collective broadcast do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.batch import FormedBatch, form_batch
from rollart_hpc.control_plane.batch_transfer import BatchTransfer
from rollart_hpc.control_plane.checkpoint import Checkpoint, ControllerState
from rollart_hpc.control_plane.checkpoint_saver import CheckpointSaver
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.model_identity import ModelIdentity
from rollart_hpc.control_plane.protocol import Announce, ProtocolStep, unobserved
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.control_plane.rollout_service import RolloutService
from rollart_hpc.control_plane.run_statistics import RunStatistics
from rollart_hpc.control_plane.weight_sync import WeightSync
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.stopping import unless_stopped
from rollart_hpc.errors import CheckpointError
from rollart_hpc.types import TrainStats

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
        saver: CheckpointSaver,
        statistics: RunStatistics,
        transfer: BatchTransfer,
        identity: ModelIdentity,
        on_step: Callable[[int, dict[str, Any]], None],
        on_checkpoint: Callable[[Checkpoint], None],
        announce: Announce = unobserved,
    ) -> None:
        self._config = config
        self._trainers, self._scheduler, self._rollout = trainers, scheduler, rollout
        self._weights, self._saver, self._statistics = weights, saver, statistics
        self._transfer, self._identity = transfer, identity
        self._on_step, self._on_checkpoint, self._announce = on_step, on_checkpoint, announce
        self._stop = asyncio.Event()

    def request_stop(self) -> None:
        """Ends the loop at the next step boundary, with a checkpoint."""
        self._stop.set()

    async def run(self, again: Sequence[list[Group]]) -> None:
        """Trains; on return everything trained is checkpointed and, unless asked to stop, the last version confirmed.

        Args:
            again: batches that were formed after the checkpoint by earlier attempts. They are trained before anything
                is handed out, so that each version has the weights that it had.

        Raises:
            WaitTimeout: no trajectory, or no confirmation of a version, within the deadline.
            CheckpointError: every step is trained and the last checkpoint cannot be written.
        """
        await self._train_to_the_end(again)
        await self._save()
        if self._scheduler.trainer_version >= self._config.run.steps:
            self._require_saved()
        if not self._stop.is_set():
            await self._confirmed()

    async def _train_to_the_end(self, again: Sequence[list[Group]]) -> None:
        """Returns early at the step boundary behind a stop: nothing is trained that was not being trained."""
        if self._stop.is_set():
            return
        await self._publish(self._scheduler.trainer_version)
        for groups in again:
            await self._train_on(groups)
            if self._stop.is_set():
                return
        if not await self._confirmed():
            return
        self._rollout.admit()
        while self._scheduler.trainer_version < self._config.run.steps and not self._stop.is_set():
            if groups := await self._next_batch():
                await self._train_on(groups)
                if self._config.rollout.schedule.weight_transfer == "blocking":
                    await self._transferred()

    async def _transferred(self) -> None:
        """Waits until the transfer may begin, which is the rollout's time, and until it is over."""
        with self._statistics.phase("get_batch"):
            await unless_stopped(self._rollout.loadable(self._scheduler.trainer_version), self._stop)
        await self._confirmed()

    def _require_saved(self) -> None:
        step = self._scheduler.trainer_version
        if self._saver.saved_step != step:
            raise CheckpointError(
                f"all {step} steps are trained, but the last checkpoint could not be written: the newest complete one "
                f"is that of step {self._saver.saved_step}; make room, the run goes on from there without generating "
                "anything again"
            )

    async def _confirmed(self) -> bool:
        """Waits until the generation workers serve the trainer's version; False when the run is to stop."""
        waiting = self._weights.wait_confirmed(self._scheduler.trainer_version, _CONFIRM_DEADLINE_S)
        with self._statistics.phase("publish"):
            return await unless_stopped(waiting, self._stop) is not None

    async def _next_batch(self) -> list[Group] | None:
        """The next batch; None when the run is to stop, which interrupts the wait but never a train step."""
        await self._announce(ProtocolStep.GET_BATCH, self._scheduler.trainer_version)
        with self._statistics.phase("get_batch"):
            return await unless_stopped(self._rollout.get_batch(), self._stop)

    async def _train_on(self, groups: list[Group]) -> None:
        step = self._scheduler.trainer_version
        formed = form_batch(
            groups, step=step, algorithm=self._config.algorithm, data_parallel=self._config.training.data_parallel
        )
        with self._statistics.phase("train_step"):
            stats, _ = await asyncio.gather(self._train(formed), self._announce(ProtocolStep.TRAIN_STEP, step))
        self._rollout.trained(groups)
        await self._publish(step + 1)
        # Before the checkpoint: a resume from it goes on behind this step's record.
        self._on_step(step + 1, self._statistics.trained(groups, formed, stats))
        await self._checkpoint()

    async def _train(self, batch: FormedBatch) -> TrainStats:
        shares = await self._transfer.sendable(batch.shares)
        stats = await self._trainers.call(ActorTrainCls.train_step, shares)  # pyright: ignore[reportArgumentType]
        await self._transfer.trained()
        return stats[0]

    async def _publish(self, version: int) -> None:
        with self._statistics.phase("publish"):
            await self._weights.publish(version)

    async def _checkpoint(self) -> None:
        """Publishes the checkpoint that is under way if its files are written; begins the next when it is time."""
        with self._statistics.phase("checkpoint"):
            self._completed(await self._saver.settle(wait=False))
            if self._scheduler.trainer_version % self._config.run.checkpoint_every == 0:
                await self._saver.begin(self._state())

    async def _save(self) -> None:
        """The last checkpoint; the one before it is waited for."""
        with self._statistics.phase("checkpoint"):
            self._completed(await self._saver.save(self._state()))

    def _completed(self, complete: Checkpoint | None) -> None:
        if complete is not None:
            self._on_checkpoint(complete)

    def _state(self) -> ControllerState:
        return ControllerState(
            step=self._scheduler.trainer_version, cursors=self._scheduler.cursors(), model=self._identity
        )
