"""Requests per second of an engine on one core; a measurement, not a test.

    python tests/integration/engines/measure_throughput.py MODEL_DIRECTORY [core|public|async|echo] [SECONDS]

arithmetic: prompts of 8 tokens, 18 new ones, 128 in flight. lake: ten turns of 30 new prompt tokens and 4 new
response tokens each, 64 trajectories in flight.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import numpy as np

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.echo import EchoEngine
from rollart_hpc.data_plane.engine import Engine
from rollart_hpc.types import GenerateRequest, GenerateResult

WARM_UP_S = 1.5


class Load:
    """Keeps an engine busy with trajectories and counts their turns."""

    def __init__(self) -> None:
        self.num_turns = 0
        self.latencies_s: list[float] = []
        self._futures: dict[int, asyncio.Future[GenerateResult]] = {}
        self._random = np.random.default_rng(0)
        self._num_requests = 0

    def deliver(self, answers: Any) -> None:
        for _, result in answers:
            future = self._futures.pop(result.request_id)
            if not future.done():
                future.set_result(result)

    async def turn(self, engine: Engine, token_ids: bytes, max_tokens: int, tag: str) -> bytes:
        self._num_requests += 1
        future = self._futures[self._num_requests] = asyncio.get_running_loop().create_future()
        sent_at = time.perf_counter()
        engine.add("measure", [GenerateRequest(self._num_requests, token_ids, max_tokens, tag=tag)])
        result = await future
        self.latencies_s.append(time.perf_counter() - sent_at)
        self.num_turns += 1
        return result.token_ids

    def tokens(self, count: int) -> bytes:
        return self._random.integers(3, 48, count).astype("<i4").tobytes()

    async def arithmetic(self, engine: Engine) -> None:
        while True:
            await self.turn(engine, self.tokens(8), 18, "arithmetic")

    async def lake(self, engine: Engine) -> None:
        while True:
            token_ids = self.tokens(30)
            for _ in range(10):
                token_ids += await self.turn(engine, token_ids, 4, "lake") + self.tokens(30)

    async def measure(self, engine: Engine, name: str, in_flight: int, seconds: float) -> None:
        tasks = [asyncio.create_task(getattr(self, name)(engine)) for _ in range(in_flight)]
        await asyncio.sleep(WARM_UP_S)
        self.num_turns, self.latencies_s = 0, []
        begun_at, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        wall_s, cpu_s = time.perf_counter() - begun_at, time.process_time() - cpu_s
        p50, p99 = np.percentile(self.latencies_s, [50, 99]) * 1e3
        sys.stdout.write(
            f"{name}: {self.num_turns / wall_s:.0f} requests/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
            f"{cpu_s / wall_s:.2f} cores, {1e3 * cpu_s / self.num_turns:.2f} CPU ms a request\n"
        )
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        # Cancelling a task cancels what it waits for; the engine still answers, and nobody listens.
        engine.abort("measure", list(self._futures))


def make_engine(kind: str, config: RunConfig) -> Engine:
    from rollart_hpc.data_plane.backends.vllm.async_engine import VllmAsyncEngine
    from rollart_hpc.data_plane.backends.vllm.thread_engine import VllmThreadEngine

    if kind == "echo":
        return EchoEngine(config)
    if kind == "async":
        return VllmAsyncEngine(config, seed=0)
    return VllmThreadEngine(config, seed=0, public_api=kind == "public")


async def main(model: str, kind: str = "core", seconds: str = "5") -> None:
    pool = {"hardware": "cpu", "actor_train": 1, "actor_gen": 1, "environment": 1, "reward": 1}
    config = RunConfig.model_validate(
        {
            "run": {"name": "measure", "steps": 1},
            "model": {"path": model},
            "rollout": {"groups_per_step": 1},
            "pools": {"here": pool},
            "tasks": {"task": {"environment": "some:environment", "reward": "some:reward"}},
        }
    )
    engine, load = make_engine(kind, config), Load()
    begun_at = time.perf_counter()
    await engine.start(load.deliver, lambda error: sys.exit(str(error)))
    sys.stdout.write(f"{kind}: started in {time.perf_counter() - begun_at:.1f} s\n")
    await load.measure(engine, "arithmetic", 128, float(seconds))
    await load.measure(engine, "lake", 64, float(seconds))
    await engine.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(*sys.argv[1:]))
