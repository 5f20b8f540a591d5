"""The controller: the process that owns the control plane (paper section 4).

    members ──▶ RolloutService ──▶ SampleBuffer ──▶ TrainingLoop ──▶ WeightSync ──▶ generation workers
                     ▲                                                   │
                     └──────────────── confirmed version ◀───────────────┘

Waits for the workers, restores the newest complete checkpoint, and then runs these services in one TaskGroup: the
failure of one ends the process, and with it the attempt. Leaves summary.json whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from rollart_hpc.bus import subjects
from rollart_hpc.bus.codec import encode
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane import checkpoint
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.journal import JOURNAL_FILE, AttemptStarted, Journal, read_journal, replay
from rollart_hpc.control_plane.ledger import Ledger
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.control_plane.rollout_service import RolloutService
from rollart_hpc.control_plane.run_statistics import RunStatistics
from rollart_hpc.control_plane.training_loop import TrainingLoop
from rollart_hpc.control_plane.weight_sync import WeightSync, probe_tokens
from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import ConfigError
from rollart_hpc.observe.metrics import MetricsWriter, write_summary
from rollart_hpc.types import Role
from rollart_hpc.weights.catalog import ManifestCatalog
from rollart_hpc.weights.garbage import WeightCollector
from rollart_hpc.weights.store import WeightStore

_log = logging.getLogger(__name__)
_START_DEADLINE_S = 600.0


class Controller:
    """One attempt's control plane."""

    def __init__(self, attempt: Attempt, bus: Bus, view: MemberView) -> None:
        self._attempt, self._bus, self._view = attempt, bus, view
        self._config: RunConfig = attempt.run_config()
        self._directory = Path(attempt.run_directory)
        self._trainers = Cluster(ActorTrainCls, bus, view)
        self._generators = Cluster(ActorGenCls, bus, view, deadline_s=self._config.weights.update_timeout_s)
        self._statistics = RunStatistics(list(self._config.tasks))
        self._loop: TrainingLoop | None = None
        self._stop_requested = asyncio.Event()

    def request_stop(self) -> None:
        """Asks for an orderly end at the next step boundary; may come at any time, any number of times."""
        self._stop_requested.set()
        if self._loop is not None:
            self._loop.request_stop()

    async def run(self) -> None:
        """Runs the attempt to its end, or to the next step boundary after `request_stop`.

        Raises:
            RollartError: a service failed; the group holds the reasons.
        """
        with self._statistics.phase("startup"):
            if not await self._workers_came():
                _log.info("asked to stop before the workers were there")
                return
            state = await self._restore()
        self._statistics.went_on_from(self._directory, state.step)
        ledger, journal = self._open_journal(state.step)
        scheduler = RolloutScheduler(
            self._config, ledger, step=state.step, cursors=state.cursors, attempt=self._attempt.number
        )
        metrics = MetricsWriter(self._directory, after_step=state.step)
        store = await asyncio.to_thread(self._connect_store)
        try:
            await self._run_services(scheduler, ledger, journal, metrics, store)
        finally:
            journal.close()
            metrics.close()
            store.close()

    async def _run_services(
        self,
        scheduler: RolloutScheduler,
        ledger: Ledger,
        journal: Journal,
        metrics: MetricsWriter,
        store: WeightStore,
    ) -> None:
        rollout = RolloutService(
            self._bus,
            self._view,
            scheduler,
            journal,
            on_finished=self._statistics.finished,
            stall_timeout_s=self._config.rollout.stall_timeout_s,
        )
        weights = await self._weight_sync(rollout, store)

        def report(step: int, record: dict[str, Any]) -> None:
            metrics.write(step, record)
            self._announce(group, {"step": step, **record, "trajectories": ledger.balance().as_summary()})

        self._loop = TrainingLoop(
            self._config,
            trainers=self._trainers,
            scheduler=scheduler,
            rollout=rollout,
            weights=weights,
            statistics=self._statistics,
            store=store,
            attempt=self._attempt.number,
            on_step=report,
        )
        if self._stop_requested.is_set():
            self._loop.request_stop()
        try:
            async with asyncio.TaskGroup() as group:
                services = [group.create_task(rollout.run()), group.create_task(weights.run())]
                await self._loop.run()
                for service in services:
                    service.cancel()
        finally:
            self._summarize(scheduler, ledger, weights)

    async def _workers_came(self) -> bool:
        """Waits for every worker; False when the run was asked to stop before."""
        waiting = asyncio.ensure_future(self._wait_for_workers())
        stopping = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            stopping.cancel()
        if not waiting.done():
            return False
        waiting.result()
        return True

    async def _wait_for_workers(self) -> None:
        for role in Role:
            await self._view.wait_for(role, self._config.num_workers(role), _START_DEADLINE_S)

    async def _restore(self) -> ControllerState:
        newest = await asyncio.to_thread(checkpoint.find_sound, self._directory)
        if newest is None:
            await self._trainers.call(ActorTrainCls.restore, "")
            return ControllerState(step=0, cursors={})
        _log.info("going on from %s", newest.directory)
        await self._trainers.call(ActorTrainCls.restore, str(newest.trainer))
        return newest.state

    def _open_journal(self, step: int) -> tuple[Ledger, Journal]:
        path = self._directory / JOURNAL_FILE
        started = AttemptStarted(self._attempt.number, step)
        if step and not path.exists():
            _log.warning("the journal is gone: the ledger begins anew at step %d", step)
        journal = Journal(path)
        journal.append([started], durable=True)
        return replay(read_journal(path)), journal

    def _connect_store(self) -> WeightStore:
        if self._attempt.store is None:
            raise ConfigError("this attempt has no weight store")
        return WeightStore.connect(self._attempt.store)

    async def _weight_sync(self, rollout: RolloutService, store: WeightStore) -> WeightSync:
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
        )

    def _announce(self, group: asyncio.TaskGroup, record: dict[str, Any]) -> None:
        group.create_task(self._bus.nc.publish(subjects.PROGRESS, encode(record)))

    def _summarize(self, scheduler: RolloutScheduler, ledger: Ledger, weights: WeightSync) -> None:
        summary = {
            "run": self._config.run.name,
            "attempt": self._attempt.number,
            "steps": scheduler.trainer_version,
            "weight_version": scheduler.trainer_version,
            "published_version": weights.published_version,
            "confirmed_version": weights.confirmed_version,
            "alpha": self._config.rollout.alpha,
            "dtype": self._config.model.dtype,
            "trajectories": ledger.balance().as_summary(),
            "causes": ledger.balance().causes,
            "weight_sync_seconds": weights.seconds,
            "probe_gap_max": weights.probe_gap_max,
            **self._statistics.as_summary(),
        }
        write_summary(self._directory, summary)
