"""The workers of a scenario: the real ones, with emulated insides."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.control_plane.controller import Controller
from rollart_hpc.control_plane.environment_worker import EnvironmentCls
from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.declarations import register
from rollart_hpc.data_plane.engine import Engine
from rollart_hpc.data_plane.environment_host import EnvironmentHost
from rollart_hpc.data_plane.reward_worker import RewardCls
from rollart_hpc.data_plane.worker import Attempt, WorkerContext
from rollart_hpc.resource_plane.figures import ServedModel
from rollart_hpc.rewards.local_pool import LocalRewardPool
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.cost_model import transfer_s
from rollart_hpc.simulate.distributions import draw
from rollart_hpc.simulate.engine import EmulatedEngine
from rollart_hpc.simulate.environments import EmulatedHost
from rollart_hpc.simulate.rewards import EmulatedPool
from rollart_hpc.simulate.scenario import EmulationSection, Scenario
from rollart_hpc.simulate.trainer import EmulatedTrainer
from rollart_hpc.types import Bucket, Manifest
from rollart_hpc.warm_start.tokenizer import VOCABULARY
from rollart_hpc.weights.store import WeightStore


class SharedStore(WeightStore):
    """A client of the store that all workers of a process have; `end` closes it, `close` does not."""

    def close(self) -> None:
        """See `WeightStore.close`; others still use it."""

    def end(self) -> None:
        """Disconnects."""
        super().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """What the workers of one scenario share."""

    scenario: Scenario
    clock: Clock
    model: ServedModel
    store: SharedStore


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedContext(WorkerContext):
    """What an emulated worker is given."""

    emulation: Emulation

    @property
    def figures(self) -> EmulationSection:
        """Those of the scenario."""
        return self.emulation.scenario.emulation

    async def transfer(self, gb_s: float) -> None:
        """Takes the time in which all weights go over a link of so many GB/s."""
        await self.emulation.clock.sleep(transfer_s(self.emulation.model.weight_bytes, gb_s))


class EmulatedActorGen(ActorGenCls):
    """A generation worker whose engine is emulated; the weights that it fetches and loads take their time."""

    def __init__(self, context: EmulatedContext) -> None:
        super().__init__(context)
        self._given = context
        self.engine: EmulatedEngine | None = None

    def create_engine(self, *, seed: int) -> Engine:
        """See `ActorGenCls.create_engine`."""
        given, figures, config = self._given, self._given.figures, self._given.config
        cost = given.emulation.scenario.engine_cost(config, self.member.pool)
        lengths = {config.tag_of(name): figures.tasks[name].response_tokens for name in config.tasks}
        rng = random.Random(seed)
        self.engine = EmulatedEngine(
            clock=given.emulation.clock,
            cost=cost,
            response_tokens=lambda tag: max(1, round(draw(lengths[tag], rng))),
            tokens_per_id=figures.tokens_per_id,
            max_context=config.model.max_context,
            vocab_size=len(VOCABULARY),
            kv_tokens=cost.kv_tokens,
        )
        return self.engine

    async def connect_store(self) -> WeightStore | None:
        """See `ActorGenCls.connect_store`."""
        return self._given.emulation.store

    @register()
    async def prefetch(self, manifest: Manifest) -> None:
        """See `ActorGenCls.prefetch`."""
        await self._given.transfer(self._given.figures.transfer.pull_gb_s)
        await super().prefetch(manifest)

    @register()
    async def load(self, version: int) -> None:
        """See `ActorGenCls.load`."""
        await self._given.transfer(self._given.figures.transfer.load_gb_s)
        await super().load(version)


class EmulatedActorTrain(ActorTrainCls):
    """One worker that stands for all ranks of the trainer."""

    def __init__(self, context: EmulatedContext) -> None:
        super().__init__(context)
        self._given = context
        self.emulated: EmulatedTrainer | None = None

    def create_trainer(self, master_address: str, master_port: int) -> EmulatedTrainer:
        """See `ActorTrainCls.create_trainer`."""
        given, figures = self._given, self._given.figures
        self.emulated = EmulatedTrainer(
            clock=given.emulation.clock,
            cost=given.emulation.scenario.trainer_cost(given.config, self.member.pool),
            tokens_per_id=figures.tokens_per_id,
            host_gb_s=figures.transfer.host_gb_s,
        )
        return self.emulated

    async def connect_store(self) -> WeightStore | None:
        """See `ActorTrainCls.connect_store`."""
        return self._given.emulation.store

    @register()
    async def upload(self) -> list[Bucket]:
        """See `ActorTrainCls.upload`."""
        await self._given.transfer(self._given.figures.transfer.push_gb_s)
        return await super().upload()


class EmulatedController(Controller):
    """The controller, with the weight store of all."""

    def __init__(self, attempt: Attempt, bus: Bus, view: MemberView, store: SharedStore) -> None:
        super().__init__(attempt, bus, view)
        self._shared_store = store

    def connect_store(self) -> WeightStore:
        """See `Controller.connect_store`."""
        return self._shared_store


class EmulatedEnvironmentWorker(EnvironmentCls):
    """An environment worker whose environments are emulated."""

    def __init__(self, context: EmulatedContext) -> None:
        self.host = EmulatedHost(context.config, context.figures, context.emulation.clock)
        super().__init__(context)

    def create_host(self) -> EnvironmentHost:
        """See `EnvironmentCls.create_host`."""
        return self.host


class EmulatedRewardWorker(RewardCls):
    """A reward worker whose functions are emulated."""

    def __init__(self, context: EmulatedContext) -> None:
        self.pool = EmulatedPool(context.config, context.figures, context.emulation.clock)
        super().__init__(context)

    def create_pool(self) -> LocalRewardPool:
        """See `RewardCls.create_pool`."""
        return self.pool
