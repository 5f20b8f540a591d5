"""``rollart-hpc bench turns``: what the path of a turn costs, without the engine and the environment.

EnvManagers and LLMProxy in this process, a generation worker with an engine that answers at once in another, the
real nats-server between them. A turn is 400 prompt ids out and 32 ids with logprobs back, on average; a trajectory
has four. With ``--period 0`` every environment answers at once: the rate is what the path can carry, the latency is
the queue of all environments. With a period each environment takes one turn in so many seconds: the latency is what the
path adds to a turn. What limits it is the Python of both event loops; the bus alone carries several times more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollart_hpc.interfaces import EnvironmentProperties

if TYPE_CHECKING:
    from rollart_hpc.config.schema import RunConfig
    from rollart_hpc.rewards.payload import Played
    from rollart_hpc.types import Episode, Score

_TURNS = 4
_FIRST_OBSERVATION = "7" * 298
_NEXT_OBSERVATION = "7" * 28
_NEW_TOKENS = 32
_WARM_UP_S = 1.0
_START_DEADLINE_S = 60.0


class BenchEnvironment:
    """Says the same each turn."""

    properties = EnvironmentProperties(light=True, replayable=True)

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Starts an episode."""
        return _FIRST_OBSERVATION, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes the answer."""
        return _NEXT_OBSERVATION, 0.0, False, False, {}

    def close(self) -> None:
        """Holds nothing."""


class _ConstantScore:
    async def score(self, episode: Episode, played: Played) -> Score:
        from rollart_hpc.types import Score

        return Score(reward=0.0)


def bench_turns(
    envs: Annotated[int, typer.Option(help="Environments at once.", min=1)] = 1000,
    seconds: Annotated[float, typer.Option(help="Length of the measurement.", min=0.5)] = 5.0,
    period: Annotated[float, typer.Option(help="Seconds between two turns of an environment.", min=0.0)] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Turns per second, latency and memory through EnvManager, LLMProxy and the bus."""
    import uvloop
    from rich.console import Console
    from rich.table import Table

    result = uvloop.run(_measure(envs, seconds, period))
    if as_json:
        print(json.dumps(result))
        return
    table = Table(*result, box=None)
    table.add_row(*(str(value) for value in result.values()))
    Console().print(table)


async def _measure(envs: int, seconds: float, period: float) -> dict[str, float]:
    import tempfile

    from rollart_hpc.bus.server import NatsServer

    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as folder:
        directory = Path(folder)
        server = await NatsServer.start(log=directory / "nats-server.log")
        try:
            return await _measure_on(server, directory, envs, seconds, period)
        finally:
            await server.stop()


async def _measure_on(server: Any, directory: Path, envs: int, seconds: float, period: float) -> dict[str, float]:
    import os

    from rollart_hpc.data_plane.worker import Attempt
    from rollart_hpc.launcher.plan import WorkerPlan
    from rollart_hpc.processes import ManagedProcess, compute_environment
    from rollart_hpc.types import Role

    config = _config(directory)
    attempt = Attempt(
        run_directory=str(directory),
        number=1,
        bus=server.endpoint,
        store=None,
        config=config.model_dump(mode="json"),
    )
    plan = WorkerPlan(member_id="actor_gen-0", role=Role.ACTOR_GEN, hardware="cpu", rank=0, pool="cpu", index=0)
    engine = await ManagedProcess.start(
        "engine",
        plan.command(attempt.write()),
        log=directory / "engine.log",
        environment=compute_environment(os.environ),
    )
    try:
        return await _play(server, config, envs, seconds, period)
    finally:
        await engine.stop()


def _config(directory: Path) -> RunConfig:
    from rollart_hpc.config.load import parse_config
    from rollart_hpc.warm_start.tokenizer import save_tokenizer

    save_tokenizer(directory / "model", max_length=4096)
    return parse_config(
        {
            "run": {"name": "bench", "steps": 1, "directory": str(directory)},
            "model": {"path": str(directory / "model"), "max_context": 4096},
            "generation": {"engine": "echo"},
            "rollout": {"groups_per_step": 1},
            "pools": {"local": {"hardware": "cpu", "actor_train": 1, "actor_gen": 1, "environment": 1, "reward": 1}},
            "tasks": {
                "bench": {
                    "environment": "rollart_hpc.cli.bench_turns:BenchEnvironment",
                    "reward": "rollart_hpc.cli.bench_turns:BenchEnvironment",
                    "max_turns": _TURNS,
                    "max_new_tokens": _NEW_TOKENS,
                }
            },
        }
    )


async def _play(server: Any, config: RunConfig, envs: int, seconds: float, period: float) -> dict[str, float]:
    import asyncio

    import numpy as np
    import psutil

    from rollart_hpc import garbage
    from rollart_hpc.bus.connection import Bus
    from rollart_hpc.bus.membership import MemberView
    from rollart_hpc.cli.paced_host import PacedHost
    from rollart_hpc.control_plane.chat import ChatFormat
    from rollart_hpc.control_plane.env_manager import EnvManager, Playground
    from rollart_hpc.control_plane.llm_proxy import LLMProxy
    from rollart_hpc.control_plane.lockstep import Lockstep
    from rollart_hpc.data_plane.environment_host import EnvironmentSpec
    from rollart_hpc.types import Role, Ticket

    bus = await Bus.connect(server.endpoint, "bench")
    view = MemberView(bus)
    proxy = LLMProxy(bus, "environment-0", view, lambda _: None, timeout_s=30.0)
    specs = {name: EnvironmentSpec.of_task(task) for name, task in config.tasks.items()}
    ended = False
    async with PacedHost(specs, max_children=1, period_s=period) as host, asyncio.TaskGroup() as group:
        services = [group.create_task(view.run()), group.create_task(proxy.run())]
        await view.wait_for(Role.ACTOR_GEN, 1, _START_DEADLINE_S)
        playground = Playground(
            worker="environment-0",
            config=config,
            chat=ChatFormat(config.model.path),
            host=host,
            proxy=proxy,
            rewards=_ConstantScore(),
            lockstep=Lockstep(config.rollout.schedule),
        )
        ticket = Ticket(trajectory_id="bench", group_id="bench", task="bench", seed=0, admitted_version=0)

        async def play_on() -> None:
            while not ended:
                if failure := (await EnvManager(playground, ticket).play()).failure:
                    raise RuntimeError(failure)

        garbage.settle()
        base = psutil.Process().memory_info().rss
        players = [group.create_task(play_on()) for _ in range(envs)]
        await asyncio.sleep(_WARM_UP_S + period)
        host.latencies_s.clear()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        cpu_s = time.process_time() - cpu_begin
        spent, latencies = time.perf_counter() - begin, np.asarray(host.latencies_s) * 1e3
        ended = True
        rss = psutil.Process().memory_info().rss
        overdue = proxy.num_overdue
        await asyncio.gather(*players)
        for service in services:
            service.cancel()
    await bus.close()
    return {
        "envs": envs,
        "turns": len(latencies),
        "turns_per_s": round(len(latencies) / spent),
        "p50_ms": round(float(np.percentile(latencies, 50)), 3),
        "p99_ms": round(float(np.percentile(latencies, 99)), 3),
        "cpu_us_per_turn": round(cpu_s / max(1, len(latencies)) * 1e6, 1),
        "timeouts": overdue,
        "rss_mb": round(rss / 1e6, 1),
        "kb_per_env": round((rss - base) / 1e3 / envs, 1),
    }
