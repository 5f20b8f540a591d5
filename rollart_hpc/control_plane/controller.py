"""The controller: the process that owns the control plane (paper section 4).

    members ──▶ RolloutService ──▶ SampleBuffer ──▶ TrainingLoop ──▶ WeightSync ──▶ generation workers
                     ▲                                                   │
                     └──────────────── confirmed version ◀───────────────┘

Waits for the workers, restores the newest complete checkpoint and what the journal has beyond it, and then runs
these services in one TaskGroup: the failure of one ends the process, and with it the attempt. When it is asked to
stop, the environment workers hand in what they play while the trainer ends its step and saves. Leaves summary.json
whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc import garbage
from rollart_hpc.bus import subjects
from rollart_hpc.bus.codec import encode
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.bus.rendezvous import own_address
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane import checkpoint
from rollart_hpc.control_plane.batch_transfer import BatchTransfer
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.checkpoint import Checkpoint, ControllerState
from rollart_hpc.control_plane.checkpoint_saver import CheckpointSaver
from rollart_hpc.control_plane.journal import (
    AttemptStarted,
    Journal,
    Published,
    compact,
    has_journal,
    read_journal,
)
from rollart_hpc.control_plane.ledger import Ledger
from rollart_hpc.control_plane.model_identity import check_identity, identify_model
from rollart_hpc.control_plane.profiler_service import ProfilerService
from rollart_hpc.control_plane.protocol import Announce, unobserved
from rollart_hpc.control_plane.recovery import Recovery, recover
from rollart_hpc.control_plane.replayed_versions import ReplayedVersions
from rollart_hpc.control_plane.resource_service import ResourceService
from rollart_hpc.control_plane.rollout_report import add_rollout_record, add_rollout_summary
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.control_plane.rollout_service import RolloutService
from rollart_hpc.control_plane.run_statistics import RunStatistics
from rollart_hpc.control_plane.training_loop import TrainingLoop
from rollart_hpc.control_plane.weight_sync import WeightSync, probe_tokens
from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.stopping import unless_stopped
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import ConfigError
from rollart_hpc.observe.metrics import MetricsWriter, write_summary
from rollart_hpc.types import Trajectory
from rollart_hpc.weights.catalog import ManifestCatalog
from rollart_hpc.weights.garbage import WeightCollector
from rollart_hpc.weights.store import WeightStore

_log = logging.getLogger(__name__)
_START_DEADLINE_S = 600.0


class Controller:
    """One attempt's control plane."""

    def __init__(self, attempt: Attempt, bus: Bus, view: MemberView, announce: Announce = unobserved) -> None:
        self._attempt, self._bus, self._view = attempt, bus, view
        self._announce = announce
        self._config: RunConfig = attempt.run_config()
        self._directory = Path(attempt.run_directory)
        self._trainers = Cluster(ActorTrainCls, bus, view)
        self._generators = Cluster(ActorGenCls, bus, view, deadline_s=self._config.weights.update_timeout_s)
        self.resources = ResourceService(bus, view, self._config, attempt.directory, attempt.number)
        """Run by the caller, from the start."""
        self._profiler = ProfilerService(self._config, self._directory, self._generators, prefer=self.resources.prefer)
        self._statistics = RunStatistics(list(self._config.tasks))
        self._identity = identify_model(self._config.model.path)
        self._replayed = ReplayedVersions()
        self._handed_in = 0
        self._compacting: asyncio.Task[None] | None = None
        self._loop: TrainingLoop | None = None
        self._stop_requested = asyncio.Event()

    def request_stop(self) -> None:
        """Asks for an orderly end at the next step boundary; may come at any time, any number of times."""
        self._stop_requested.set()
        if self._loop is not None:
            self._loop.request_stop()

    async def run(self) -> bool:
        """Runs the attempt to its end, or to the next step boundary after `request_stop`.

        Returns:
            Whether it was stopped before the last step; everything is saved then.

        Raises:
            RollartError: a service failed; the group holds the reasons.
        """
        with self._statistics.phase("startup"):
            if not await unless_stopped(self._workers_came(), self._stop_requested):
                _log.info("asked to stop before the workers were there")
                return True
            recovery = await self._restore()
        garbage.settle()
        self._statistics.went_on_from(self._directory, recovery.step)
        journal = Journal(self._directory)
        journal.append([AttemptStarted(self._attempt.number, recovery.step), *recovery.lost], durable=True)
        scheduler = RolloutScheduler(self._config, recovery)
        metrics = MetricsWriter(self._directory, after_step=recovery.step)
        store = await asyncio.to_thread(self.connect_store)
        try:
            await self._run_services(scheduler, recovery, journal, metrics, store)
        finally:
            journal.close()
            metrics.close()
            store.close()
        return scheduler.trainer_version < self._config.run.steps

    async def _run_services(
        self,
        scheduler: RolloutScheduler,
        recovery: Recovery,
        journal: Journal,
        metrics: MetricsWriter,
        store: WeightStore,
    ) -> None:
        def finished(trajectory: Trajectory) -> None:
            self._statistics.finished(trajectory)
            self._profiler.finished(trajectory)

        rollout = RolloutService(
            self._bus,
            self._view,
            scheduler,
            journal,
            on_finished=finished,
            stall_timeout_s=self._config.rollout.stall_timeout_s,
        )

        def published(version: int, digest: str) -> None:
            journal.append([Published(version, digest)])
            self._replayed.compare(version, digest)

        weights = await self._weight_sync(rollout, store, published)
        self._replayed.expect(recovery.digests)

        def report(step: int, record: dict[str, Any]) -> None:
            record |= self._profiler.as_record()
            add_rollout_record(record, scheduler.tasks, scheduler.waited_for)
            self._profiler.stepped()
            metrics.write(step, record)
            self._announce_progress(
                group, {"step": step, **record, "trajectories": recovery.ledger.balance().as_summary()}
            )

        def checkpointed(complete: Checkpoint) -> None:
            journal.rotate()
            if not self._compacting or self._compacting.done():
                self._compacting = group.create_task(asyncio.to_thread(self._compact, complete.state.step))

        saver = CheckpointSaver(
            self._directory,
            self._trainers,
            keep_every=self._config.run.checkpoint_keep_every,
            saved_step=recovery.step if recovery.step else -1,
            announce=self._announce,
        )
        loop = self._loop = TrainingLoop(
            self._config,
            trainers=self._trainers,
            scheduler=scheduler,
            rollout=rollout,
            weights=weights,
            saver=saver,
            statistics=self._statistics,
            transfer=BatchTransfer(store, run=self._config.run.name, attempt=self._attempt.number),
            identity=self._identity,
            on_step=report,
            on_checkpoint=checkpointed,
            announce=self._announce,
        )
        if self._stop_requested.is_set():
            loop.request_stop()
        try:
            async with asyncio.TaskGroup() as group:
                services = [group.create_task(one.run()) for one in (rollout, weights, self._profiler)]
                handing_in = group.create_task(self._hand_in_when_stopped(rollout))
                await loop.run(recovery.batches)
                if self._stop_requested.is_set():
                    await handing_in
                handing_in.cancel()
                for service in services:
                    service.cancel()
        finally:
            await saver.close()
            self._summarize(scheduler, recovery.ledger, weights, saver)

    def _compact(self, newest_step: int) -> None:
        """Frees what no kept checkpoint needs for a resume."""
        oldest = checkpoint.oldest_kept_step(self._directory, newest_step)
        if oldest is not None:
            compact(self._directory, before_step=oldest)

    async def _hand_in_when_stopped(self, rollout: RolloutService) -> None:
        """While the trainer ends its step, everything that is being played comes in."""
        await self._stop_requested.wait()
        rollout.close()
        self._handed_in = await rollout.hand_in()

    async def _workers_came(self) -> bool:
        """Waits for every worker that is planned."""
        await self.resources.wait_for_workers(_START_DEADLINE_S)
        return True

    async def _restore(self) -> Recovery:
        """Brings the trainer to the newest sound checkpoint, and finds out what the journal has beyond it."""
        await asyncio.to_thread(checkpoint.sweep, self._directory)
        newest = await asyncio.to_thread(checkpoint.find_sound, self._directory)
        if newest is None:
            state, trainer_part = ControllerState(step=0, cursors={}, model=self._identity), ""
        else:
            state, trainer_part = newest.state, str(newest.trainer)
            check_identity(state.model, self._identity)
            _log.info("going on from %s", newest.directory)
        if state.step and not has_journal(self._directory):
            _log.warning("the journal is gone: the ledger begins anew at step %d", state.step)
        recovery = await asyncio.to_thread(recover, read_journal(self._directory), state, self._config)
        if recovery.batches:
            _log.info("steps %d to %d are trained again from the journal", recovery.step + 1, recovery.version)
        await self._trainers.call(ActorTrainCls.restore, trainer_part)
        return recovery

    def connect_store(self) -> WeightStore:
        """A client of the attempt's weight store; `run` closes it."""
        if self._attempt.store is None:
            raise ConfigError("this attempt has no weight store")
        return WeightStore.connect(self._attempt.store, host=own_address(self._bus))

    async def _weight_sync(
        self, rollout: RolloutService, store: WeightStore, on_published: Callable[[int, str], None]
    ) -> WeightSync:
        bucket = await self._bus.bucket(subjects.WEIGHTS_BUCKET)
        catalog = ManifestCatalog(self._bus.js, bucket)
        return WeightSync(
            bus=self._bus,
            trainers=self._trainers,
            generators=self._generators,
            view=self._view,
            catalog=catalog,
            collector=WeightCollector(catalog, store, versions_kept=self._config.weights.versions_kept),
            attempt=self._attempt.number,
            dtype=self._config.model.dtype,
            probe_token_ids=probe_tokens(ChatFormat(self._config.model.path)),
            on_confirmed=rollout.generation_confirmed,
            on_published=on_published,
            transfer=self._config.rollout.schedule.weight_transfer,
            loading=rollout.loading,
            announce=self._announce,
        )

    def _announce_progress(self, group: asyncio.TaskGroup, record: dict[str, Any]) -> None:
        group.create_task(self._bus.nc.publish(subjects.PROGRESS, encode(record)))

    def _summarize(
        self, scheduler: RolloutScheduler, ledger: Ledger, weights: WeightSync, saver: CheckpointSaver
    ) -> None:
        summary = {
            "run": self._config.run.name,
            "attempt": self._attempt.number,
            "steps": scheduler.trainer_version,
            "weight_version": scheduler.trainer_version,
            "published_version": weights.published_version,
            "confirmed_version": weights.confirmed_version,
            "mode": self._config.rollout.mode,
            "alpha": self._config.rollout.schedule.alpha,
            "schedule": msgspec.to_builtins(self._config.rollout.schedule),
            "dtype": self._config.model.dtype,
            "trajectories": ledger.balance().as_summary(),
            "causes": ledger.balance().causes,
            "weight_sync_seconds": weights.seconds,
            "probe_gap_max": weights.probe_gap_max,
            "handed_in": self._handed_in,
            "replayed": self._replayed.as_summary(),
            "checkpoint_failures": saver.failures,
            "checkpoint_seconds": saver.seconds,
            **self._statistics.as_summary(),
            **self._profiler.as_summary(),
        }
        add_rollout_summary(summary, scheduler.tasks)
        write_summary(self._directory, summary)
