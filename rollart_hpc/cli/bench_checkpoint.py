"""``rollart-hpc bench checkpoint``: what a step waits for a checkpoint, saved beside training or while it waits."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rollart_hpc.config.schema import RunConfig
    from rollart_hpc.control_plane.checkpoint_saver import CheckpointSaver
    from rollart_hpc.data_plane.actor_train import ActorTrainCls
    from rollart_hpc.data_plane.cluster import Cluster

_START_DEADLINE_S = 120.0
_VOCABULARY, _CONTEXT, _SEQUENCES, _LAYERS = 4096, 256, 4, 4


def bench_checkpoint(
    width: Annotated[int, typer.Option(help="Width of the model: 512 gives a checkpoint of 252 MB.", min=64)] = 512,
    ranks: Annotated[int, typer.Option(help="Trainer ranks, tensor parallel.", min=1)] = 1,
    rounds: Annotated[int, typer.Option(help="Measurements of each kind; their median counts.", min=1)] = 5,
    directory: Annotated[
        Path | None, typer.Option(help="On the file system to measure; the temporary directory when absent.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measures how long a train step is held up by a checkpoint, saved beside training and saved while it waits.

    Real trainer ranks on the CPU, driven over the bus by the controller's code. Each round trains a step by itself,
    saves while training waits, then saves beside training, with steps until the files are written.
    """
    import uvloop
    from rich.console import Console
    from rich.table import Table

    result = uvloop.run(_bench(width, ranks, rounds, directory))
    if as_json:
        print(json.dumps(result))
        return
    table = Table("measured", "", box=None)
    for name, value in result.items():
        table.add_row(name, str(value))
    Console().print(table)


async def _bench(width: int, ranks: int, rounds: int, directory: Path | None) -> dict[str, float]:
    from rollart_hpc.control_plane.checkpoint_saver import CheckpointSaver

    with tempfile.TemporaryDirectory(prefix="rollart-bench-", dir=directory) as folder:
        run = Path(folder)
        async with _trainers(_config(run, width, ranks), run) as trainers:
            saver = CheckpointSaver(run, trainers, keep_every=None)
            bench = _Rounds(trainers, saver)
            # What is done for the first time does not count.
            await bench.run()
            bench.seconds = _Seconds()
            for _ in range(rounds):
                await bench.run()
            await saver.close()
        return {"checkpoint_mb": _newest_mb(run), "ranks": ranks, "rounds": rounds, **bench.seconds.as_result()}


@dataclass(slots=True)
class _Seconds:
    step: list[float] = field(default_factory=list[float])
    waiting_stall: list[float] = field(default_factory=list[float])
    beside_stall: list[float] = field(default_factory=list[float])
    background: list[float] = field(default_factory=list[float])
    step_beside: list[float] = field(default_factory=list[float])

    def as_result(self) -> dict[str, float]:
        waiting, beside = median(self.waiting_stall), median(self.beside_stall)
        return {
            "step_s": round(median(self.step), 3),
            "blocking_stall_s": round(waiting, 3),
            "async_stall_s": round(beside, 3),
            "async_share": round(beside / waiting, 3),
            "background_s": round(median(self.background), 3),
            "step_while_writing_s": round(median(self.step_beside), 3),
        }


class _Rounds:
    def __init__(self, trainers: Cluster[ActorTrainCls], saver: CheckpointSaver) -> None:
        from rollart_hpc.control_plane.model_identity import ModelIdentity

        self._trainers, self._saver = trainers, saver
        self._identity = ModelIdentity(architecture={}, vocab_size=_VOCABULARY, tokenizer={})
        self._step = 0
        self.seconds = _Seconds()

    async def run(self) -> None:
        """A step alone, a save that training waits for, a save beside training."""
        seconds, saver = self.seconds, self._saver
        seconds.step.append(await _timed(self._train))
        seconds.waiting_stall.append(await _timed(lambda: saver.save(self._state())))
        await self._train()
        stalled, written = saver.seconds["stall"], saver.seconds["background"]
        await saver.begin(self._state())
        complete = None
        while complete is None:
            seconds.step_beside.append(await _timed(self._train))
            complete = await saver.settle(wait=False)
        seconds.beside_stall.append(saver.seconds["stall"] - stalled)
        seconds.background.append(saver.seconds["background"] - written)

    async def _train(self) -> None:
        from rollart_hpc.data_plane.actor_train import ActorTrainCls

        await self._trainers.call(ActorTrainCls.train_step, [_batch(self._step)])  # pyright: ignore[reportArgumentType]
        self._step += 1

    def _state(self) -> Any:
        from rollart_hpc.control_plane.checkpoint import ControllerState

        return ControllerState(step=self._step, cursors={}, model=self._identity)


async def _timed(work: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


@asynccontextmanager
async def _trainers(config: RunConfig, folder: Path) -> AsyncGenerator[Cluster[ActorTrainCls]]:
    """Trainer ranks with random weights, each a process."""
    import asyncio
    import os
    from contextlib import AsyncExitStack

    from rollart_hpc.bus.connection import Bus
    from rollart_hpc.bus.membership import MemberView
    from rollart_hpc.bus.server import NatsServer
    from rollart_hpc.data_plane.actor_train import ActorTrainCls
    from rollart_hpc.data_plane.cluster import Cluster
    from rollart_hpc.data_plane.worker import Attempt
    from rollart_hpc.launcher.plan import plan_workers
    from rollart_hpc.processes import ManagedProcess, compute_environment
    from rollart_hpc.types import Role

    async with AsyncExitStack() as ended:
        server = await NatsServer.start(log=folder / "nats-server.log")
        ended.push_async_callback(server.stop)
        raw = config.model_dump(mode="json")
        attempt = Attempt(run_directory=str(folder), number=1, bus=server.endpoint, store=None, config=raw)
        for plan in plan_workers(config):
            if plan.role is Role.ACTOR_TRAIN:
                command, log = plan.command(attempt.write()), folder / f"{plan.member_id}.log"
                environment = compute_environment(os.environ)
                rank = await ManagedProcess.start(plan.member_id, command, log=log, environment=environment)
                ended.push_async_callback(rank.end, 0.0)
        bus = await Bus.connect(server.endpoint, "bench")
        ended.push_async_callback(bus.close)
        view = MemberView(bus)
        watching = asyncio.create_task(view.run())
        ended.callback(watching.cancel)
        await view.wait_for(Role.ACTOR_TRAIN, config.training.world_size, _START_DEADLINE_S)
        yield Cluster(ActorTrainCls, bus, view)


def _config(folder: Path, width: int, ranks: int) -> RunConfig:
    from rollart_hpc.config.load import parse_config

    architecture = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": _VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": width // 32,
        "num_key_value_heads": width // 32,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": _CONTEXT,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(architecture))
    return parse_config(
        {
            "run": {"name": "bench", "steps": 1, "directory": str(folder)},
            "model": {"path": str(folder), "max_context": _CONTEXT},
            "training": {"tensor_parallel": ranks},
            "rollout": {"groups_per_step": 1},
            "pools": {
                "local": {"hardware": "cpu", "actor_train": ranks, "actor_gen": 1, "environment": 1, "reward": 1}
            },
            "tasks": {"bench": {"environment": "m:E", "reward": "m:r", "max_new_tokens": 8}},
        }
    )


def _batch(step: int) -> Any:
    import numpy as np

    from rollart_hpc.types import TrainBatch

    generator = np.random.default_rng(step)
    total = _SEQUENCES * _CONTEXT
    weights = np.full(total, 1 / total, np.float32)
    weights[::_CONTEXT] = 0
    return TrainBatch(
        step=step,
        token_ids=generator.integers(0, _VOCABULARY, total).astype(np.int32),
        lengths=np.full(_SEQUENCES, _CONTEXT, np.int32),
        advantages=generator.normal(size=total).astype(np.float32),
        loss_weights=weights,
        sampler_logprobs=np.full(total, -np.log(_VOCABULARY), np.float32),
        same_version=np.zeros(total, np.uint8),
    )


def _newest_mb(run: Path) -> float:
    from rollart_hpc.control_plane.checkpoint import find_newest

    newest = find_newest(run)
    return round(sum(part.size_bytes for part in newest.marker.parts.values()) / 1e6, 1) if newest else 0.0
