"""Runs a scenario: the real controller, workers, bus and weight store, on one event loop, over emulated hardware.

What is emulated is inside the workers: engines, the trainer, environments, reward functions. Everything that
coordinates them is what a run has, with its real messages; what that costs is in the result, in simulated time.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.msg import Msg

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.data_plane.stop_signals import StopSignals
from rollart_hpc.data_plane.worker import Attempt, Worker, WorkerContext
from rollart_hpc.data_plane.worker_process import serve
from rollart_hpc.errors import ConfigError, RollartError
from rollart_hpc.launcher.plan import WorkerPlan, plan_workers
from rollart_hpc.launcher.services import run_services
from rollart_hpc.observe.failures import innermost
from rollart_hpc.observe.metrics import read_summary
from rollart_hpc.resource_plane.figures import known_figures
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.scenario import Scenario
from rollart_hpc.simulate.workers import (
    EmulatedActorGen,
    EmulatedActorTrain,
    EmulatedContext,
    EmulatedController,
    EmulatedEnvironmentWorker,
    EmulatedRewardWorker,
    Emulation,
    SharedStore,
)
from rollart_hpc.types import Role
from rollart_hpc.warm_start.recipe import ModelShape
from rollart_hpc.warm_start.tiny_model import save_model_files

_CLASSES = {
    Role.ACTOR_GEN: EmulatedActorGen,
    Role.ACTOR_TRAIN: EmulatedActorTrain,
    Role.ENVIRONMENT: EmulatedEnvironmentWorker,
    Role.REWARD: EmulatedRewardWorker,
}
_END_DEADLINE_S = 10.0
"""For the workers' orderly end; then they are cancelled."""
_LOOK_EVERY_S = 0.05
_GIVEN = tuple(field.name for field in fields(WorkerContext))


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The run when a train step had ended."""

    step: int
    at_s: float
    """Simulated seconds since the start."""
    busy_s: dict[str, float]
    """Simulated seconds of work so far, by pool; ``environment`` is that of all slots."""
    metrics: dict[str, Any]
    """The step's record in metrics.jsonl, in real seconds, with the ledger's balance."""


class EmulatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a scenario."""

    records: list[StepRecord]
    """Of every step, those of the warm-up included."""
    capacity: dict[str, int]
    """What `StepRecord.busy_s` adds up over, by pool."""
    summary: dict[str, Any]
    """summary.json."""
    lateness_s: float
    """Mean lateness of the event loop, in simulated seconds: what every wait of the emulation is longer by."""


async def run_scenario(scenario: Scenario, directory: Path) -> EmulatedRun:
    """Runs a scenario to its last step; all that it starts has ended when this returns.

    Args:
        scenario: what is run.
        directory: a new one, for the model's files and the run.

    Raises:
        ConfigError: the scenario is wrong.
        RollartError: the run failed.
        KeyboardInterrupt: it was told to stop.
    """
    model = directory / "model"
    config = scenario.run_config(model, directory / "run")
    save_model_files(model, ModelShape(max_positions=config.model.max_context))
    figures, signals = scenario.emulation, StopSignals()
    async with run_services(config, directory / "logs", "127.0.0.1") as services:
        store = await asyncio.to_thread(SharedStore.connect, services.master.endpoint)
        emulation = Emulation(
            scenario=scenario,
            clock=Clock(figures.time_scale),
            model=known_figures().model(figures.model.name),
            store=store,
        )
        attempt = Attempt(
            run_directory=str(config.run.path()),
            number=1,
            bus=services.nats.endpoint,
            store=services.master.endpoint,
            config=config.model_dump(mode="json"),
        )
        attempt.directory.mkdir(parents=True)
        try:
            return await _Run(attempt, emulation, signals).run(plan_workers(config))
        except BaseExceptionGroup as group:
            causes = innermost(group)
            kind = ConfigError if any(isinstance(one, ConfigError) for one in causes) else RollartError
            raise kind(f"{scenario.name}: {'; '.join(str(one) for one in causes)}") from group
        finally:
            await asyncio.to_thread(store.end)


class _Run:
    """One attempt in this process."""

    def __init__(self, attempt: Attempt, emulation: Emulation, signals: StopSignals) -> None:
        self._attempt, self._emulation, self._signals = attempt, emulation, signals
        self._workers: list[Worker] = []
        self._records: list[StepRecord] = []
        self._lateness_s: list[float] = []
        self._is_done = asyncio.Event()

    async def run(self, plans: list[WorkerPlan]) -> EmulatedRun:
        bus = await Bus.connect(self._attempt.bus, "controller")
        view = MemberView(bus)
        controller = EmulatedController(self._attempt, bus, view, self._emulation.store)
        await bus.subscribe(subjects.PROGRESS, self._stepped)
        try:
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(self._serve(plan)) for plan in plans]
                services = (view.run(), controller.resources.run(), controller.run())
                controlling: list[asyncio.Task[Any]] = [
                    group.create_task(one) for one in (*services, self._watch_lateness())
                ]
                await _first(self._is_done, self._signals.told)
                for task in controlling:
                    task.cancel()
                await asyncio.wait(controlling)
                await bus.nc.publish(subjects.END, b"")
                await asyncio.wait(workers, timeout=_END_DEADLINE_S)
                for task in workers:
                    task.cancel()
        finally:
            await bus.close()
        if self._signals.told.is_set():
            raise KeyboardInterrupt
        return EmulatedRun(
            records=self._records,
            capacity=self._capacity(),
            summary=read_summary(self._directory),
            lateness_s=sum(self._lateness_s) / max(1, len(self._lateness_s)),
        )

    @property
    def _directory(self) -> Path:
        return Path(self._attempt.run_directory)

    async def _serve(self, plan: WorkerPlan) -> None:
        member = Member(
            member_id=plan.member_id,
            role=plan.role,
            hardware=plan.hardware,
            node="emulated",
            pid=os.getpid(),
            pool=plan.pool,
            rank=plan.rank,
        )

        def make(context: WorkerContext) -> Worker:
            given = EmulatedContext(**{name: getattr(context, name) for name in _GIVEN}, emulation=self._emulation)
            worker = _CLASSES[plan.role](given)
            self._workers.append(worker)
            return worker

        await serve(make, self._attempt, member, self._signals)

    async def _watch_lateness(self) -> None:
        clock, due_s = self._emulation.clock, _LOOK_EVERY_S * self._emulation.scenario.emulation.time_scale
        while True:
            begin = clock.now()
            await clock.sleep(due_s)
            self._lateness_s.append(clock.now() - begin - due_s)

    async def _stepped(self, message: Msg) -> None:
        record = codec.decode(message.data, dict[str, Any])
        at_s = self._emulation.clock.now()
        self._records.append(StepRecord(step=record["step"], at_s=at_s, busy_s=self._busy_s(), metrics=record))
        if record["step"] >= self._emulation.scenario.num_steps:
            self._is_done.set()

    def _busy_s(self) -> dict[str, float]:
        busy: defaultdict[str, float] = defaultdict(float)
        for worker in self._workers:
            busy[_name_of(worker)] += _busy_of(worker)
        return dict(busy)

    def _capacity(self) -> dict[str, int]:
        capacity: Counter[str] = Counter()
        for worker in self._workers:
            capacity[_name_of(worker)] += self._capacity_of(worker)
        return dict(capacity)

    def _capacity_of(self, worker: Worker) -> int:
        if isinstance(worker, EmulatedEnvironmentWorker):
            return worker.member.capacity
        if isinstance(worker, EmulatedRewardWorker):
            return self._emulation.scenario.emulation.reward_slots or 0
        return 1


def _name_of(worker: Worker) -> str:
    """Trainers and engines go by their pool; what shares a pool of CPUs goes by its role."""
    own = worker.role in (Role.ENVIRONMENT, Role.REWARD)
    return str(worker.role) if own else worker.member.pool


def _busy_of(worker: Worker) -> float:
    match worker:
        case EmulatedActorGen(engine=engine) if engine is not None:
            return engine.busy_s
        case EmulatedActorTrain(emulated=trainer) if trainer is not None:
            return trainer.busy_s
        case EmulatedEnvironmentWorker(host=host):
            return host.busy.total_s()
        case EmulatedRewardWorker(pool=pool):
            return pool.busy.total_s()
        case _:
            return 0.0


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
