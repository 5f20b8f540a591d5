"""Trainer ranks in processes of their own, as a run has them, for one attempt of a test."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView, expel
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.checkpoint import Checkpoint, ControllerState
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.launcher.plan import plan_workers
from rollart_hpc.processes import ManagedProcess, compute_environment
from rollart_hpc.types import Role, TrainBatch
from tests.builders import IDENTITY

START_DEADLINE_S = 120
ARCHITECTURE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


@dataclass
class Trainers:
    bus: Bus
    cluster: Cluster[ActorTrainCls]
    ranks: list[ManagedProcess]

    async def train(self, step: int) -> None:
        batch = random_batch(step)
        await self.cluster.call(ActorTrainCls.train_step, [batch])  # pyright: ignore[reportArgumentType]

    async def probe(self) -> list[float]:
        return (await self.cluster.call(ActorTrainCls.probe, [3, 1, 4, 1, 5, 9]))[0]

    async def restore(self, found: Checkpoint) -> None:
        await self.cluster.call(ActorTrainCls.restore, str(found.trainer))

    def freeze(self, rank: int) -> None:
        os.kill(self.ranks[rank].pid, signal.SIGSTOP)

    async def kill(self, rank: int) -> None:
        """And tells the others, as the leader does."""
        self.ranks[rank].kill()
        await self.ranks[rank].wait()
        await expel(self.bus, self.ranks[rank].name)


@contextlib.asynccontextmanager
async def trainers(run: Path, scratch: Path, *, tensor_parallel: int) -> AsyncIterator[Trainers]:
    """Ranks with random weights, the same in every attempt. ``scratch`` is the attempt's, ``run`` outlives it."""
    config = _config(run, scratch, tensor_parallel)
    server = await NatsServer.start(log=scratch / "nats.log")
    attempt = Attempt(
        run_directory=str(scratch), number=1, bus=server.endpoint, store=None, config=config.model_dump(mode="json")
    )
    ranks = [
        await ManagedProcess.start(
            plan.member_id,
            plan.command(attempt.write()),
            log=scratch / f"{plan.member_id}.log",
            environment=compute_environment(os.environ),
        )
        for plan in plan_workers(config)
        if plan.role is Role.ACTOR_TRAIN
    ]
    bus = await Bus.connect(server.endpoint, "test")
    view = MemberView(bus)
    async with contextlib.AsyncExitStack() as ended:
        ended.push_async_callback(server.stop)
        for rank in ranks:
            ended.push_async_callback(rank.end, 0.0)
        ended.push_async_callback(bus.close)
        watching = asyncio.create_task(view.run())
        ended.callback(watching.cancel)
        await view.wait_for(Role.ACTOR_TRAIN, tensor_parallel, START_DEADLINE_S)
        yield Trainers(bus, Cluster(ActorTrainCls, bus, view), ranks)


def _config(run: Path, scratch: Path, tensor_parallel: int) -> RunConfig:
    scratch.mkdir()
    (scratch / "config.json").write_text(json.dumps(ARCHITECTURE))
    counts = {"actor_train": tensor_parallel, "actor_gen": 1, "environment": 1, "reward": 1}
    return parse_config(
        {
            "run": {"name": "test", "steps": 9, "directory": str(run)},
            "model": {"path": str(scratch), "max_context": 64},
            "training": {"tensor_parallel": tensor_parallel, "learning_rate": 0.01},
            "rollout": {"groups_per_step": 1},
            "pools": {"all": {"hardware": "cpu", **counts}},
            "tasks": {"a": {"environment": "m:E", "reward": "m:r", "max_new_tokens": 8}},
        }
    )


def random_batch(step: int) -> TrainBatch:
    generator = np.random.default_rng(step)
    lengths = np.int32([20, 12])
    total = int(lengths.sum())
    weights = np.full(total, 1 / total, np.float32)
    weights[[0, 20]] = 0
    return TrainBatch(
        step=step,
        token_ids=generator.integers(0, ARCHITECTURE["vocab_size"], total).astype(np.int32),
        lengths=lengths,
        advantages=generator.normal(size=total).astype(np.float32),
        loss_weights=weights,
        sampler_logprobs=np.full(total, -4.0, np.float32),
        same_version=np.zeros(total, np.uint8),
    )


def state_of(step: int) -> ControllerState:
    return ControllerState(step=step, cursors={}, model=IDENTITY)
