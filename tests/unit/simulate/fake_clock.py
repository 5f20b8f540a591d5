"""A clock that a test moves, and an engine and an inbox on it."""

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rollart_hpc.data_plane.engine import Answer
from rollart_hpc.resource_plane.figures import known_figures
from rollart_hpc.resource_plane.hardware import hardware_class
from rollart_hpc.simulate.cost_model import EngineCost
from rollart_hpc.simulate.engine import EmulatedEngine
from rollart_hpc.types import GenerateRequest, GenerateResult


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback, self.is_cancelled = callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeClock:
    """Simulated time stands still but in `advance`."""

    def __init__(self) -> None:
        self.time = 0.0
        self.blocked: list[float] = []
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.time

    def block(self, seconds: float) -> None:
        self.blocked.append(seconds)
        self.time += seconds

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self.time + seconds, next(self._order), timer))
        return timer

    @property
    def num_timers(self) -> int:
        return sum(not timer.is_cancelled for _, _, timer in self._timers)

    def advance(self, seconds: float, *, late_s: float = 0.0) -> None:
        """Each timer fires when it is due, or so much later."""
        end = self.time + seconds
        while self._timers and self._timers[0][0] + late_s <= end:
            due, _, timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                self.time = max(self.time, due + late_s)
                timer.callback()
        self.time = end


def engine_cost(hardware: str = "H800", *, model: str = "Qwen3-8B", devices: int = 1) -> EngineCost:
    return EngineCost(
        model=known_figures().model(model),
        hardware=hardware_class(hardware),
        devices=devices,
        compute_efficiency=0.5,
        bandwidth_efficiency=0.8,
    )


class Emulated:
    """One engine, and what it answered: by request id, with the time."""

    def __init__(self, *, response_tokens: Callable[[str], int] = lambda _: 100, **changes: Any) -> None:
        self.clock = FakeClock()
        self.cost = engine_cost()
        self.engine = EmulatedEngine(
            **{
                "clock": self.clock,
                "cost": self.cost,
                "response_tokens": response_tokens,
                "tokens_per_id": 1,
                "max_context": 32_768,
                "vocab_size": 1000,
                "kv_tokens": self.cost.kv_tokens,
                **changes,
            }
        )
        self.results: dict[int, GenerateResult] = {}
        self.ended_s: dict[int, float] = {}
        self.failures: list[BaseException] = []
        self._next_id = itertools.count()

    async def start(self) -> "Emulated":
        await self.engine.start(self._deliver, self.failures.append)
        return self

    def ask(self, prompt: Iterable[int], max_tokens: int = 10_000, **fields: Any) -> int:
        request_id = next(self._next_id)
        prompt_bytes = np.asarray(list(prompt), "<i4").tobytes()
        self.engine.add("inbox", [GenerateRequest(request_id, prompt_bytes, max_tokens, **fields)])
        return request_id

    def ask_fresh(self, num_ids: int, **fields: Any) -> int:
        """Of a prompt that no other one begins like."""
        seed = 1 + len(self.results) + self.engine.num_running
        return self.ask(np.random.default_rng(seed).integers(0, 1000, num_ids).tolist(), **fields)

    async def install(self, version: int, *, after_s: float = 0.0) -> None:
        await self.engine.suspend()
        self.clock.advance(after_s)
        await self.engine.load(version, [])
        await self.engine.resume()

    def run_out(self) -> None:
        """Until everything is answered."""
        while self.engine.num_running:
            self.clock.advance(1.0)

    def num_tokens(self, request_id: int) -> int:
        return len(self.results[request_id].token_ids) // 4

    def _deliver(self, answers: Iterable[Answer]) -> None:
        for _, result in answers:
            assert result.request_id not in self.results
            self.results[result.request_id] = result
            self.ended_s[result.request_id] = self.clock.now()
