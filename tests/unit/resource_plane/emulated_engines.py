"""Generation workers of stated speeds: what their counters say after each iteration, under any mapping."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rollart_hpc.resource_plane.auto_affinity import AutoAffinity
from rollart_hpc.resource_plane.hardware import HardwareClass, hardware_class
from rollart_hpc.resource_plane.predictions import Situation
from rollart_hpc.resource_plane.profile import Profiler
from rollart_hpc.types import TagUsage


@dataclass(frozen=True)
class Work:
    """Of one tag in an iteration."""

    prompt_tokens: int
    new_tokens: int
    cached_share: float = 0.0
    requests: int = 100


@dataclass(frozen=True)
class Engines:
    """The workers of one class, tokens per second of each."""

    prefill: float
    decode: float
    workers: int = 1


# As in the paper's figure 4: many turns that read, few that write at length.
LAKE, MATH = Work(400_000, 4_000), Work(8_000, 100_000)
# In proportion to the vendors' figures.
H800, H20 = Engines(98_900, 3_350), Engines(14_800, 4_000)


@dataclass
class Emulation:
    """Profiler, advisor and state machine in a loop with emulated engines."""

    tags: dict[str, Work]
    engines: dict[str, Engines]
    declared: dict[str, str]
    seed: int = 0
    noise: float = 0.1
    figures: dict[str, HardwareClass] = field(default_factory=dict[str, HardwareClass])
    min_gain: float = 0.1
    settle_steps: int = 2

    def __post_init__(self) -> None:
        self.tags, self.engines = dict(self.tags), dict(self.engines)
        self.profiler = Profiler()
        self.affinity = AutoAffinity(self.declared, min_gain=self.min_gain, settle_steps=self.settle_steps)
        self.changed_after: list[int] = []
        self.iteration = 0
        self._random = np.random.default_rng(self.seed)
        self._counters: defaultdict[tuple[str, int], dict[str, TagUsage]] = defaultdict(dict)

    @property
    def mapping(self) -> dict[str, str]:
        return self.affinity.mapping

    def situation(self) -> Situation:
        return Situation(
            profile=self.profiler.profile(),
            workers={name: engines.workers for name, engines in self.engines.items()},
            hardware={name: self.figures.get(name) or hardware_class(name) for name in self.engines},
        )

    def run(self, iterations: int) -> "Emulation":
        for _ in range(iterations):
            self.iteration += 1
            for tag, work in self.tags.items():
                self._generate(tag, work)
            for (hardware, number), usage in self._counters.items():
                self.profiler.take_usage(f"{hardware}-{number}", hardware, usage)
            self.profiler.end_iteration()
            if self.affinity.decide(self.situation()) is not None:
                self.changed_after.append(self.iteration)
        return self

    def true_time_s(self, mapping: Mapping[str, str]) -> float:
        """Without noise: seconds of the class that is done last."""
        loads = dict.fromkeys(self.engines, 0.0)
        for tag, work in self.tags.items():
            for name, share in self._shares(tag, mapping).items():
                loads[name] += share * sum(self._seconds(work, name)) / self.engines[name].workers
        return max(loads.values())

    def _seconds(self, work: Work, hardware: str) -> tuple[float, float]:
        engines = self.engines[hardware]
        return work.prompt_tokens * (1 - work.cached_share) / engines.prefill, work.new_tokens / engines.decode

    def _shares(self, tag: str, mapping: Mapping[str, str]) -> dict[str, float]:
        if tag in mapping:
            return {mapping[tag]: 1.0}
        rates = {
            name: engines.workers / sum(self._seconds(self.tags[tag], name)) for name, engines in self.engines.items()
        }
        return {name: rate / sum(rates.values()) for name, rate in rates.items()}

    def _generate(self, tag: str, work: Work) -> None:
        amount = self._noisy()
        for hardware, share in self._shares(tag, self.mapping).items():
            prefill_s, decode_s = self._seconds(work, hardware)
            for number in range(self.engines[hardware].workers):
                part = amount * share / self.engines[hardware].workers
                counters = self._counters[hardware, number]
                counters[tag] = counters.get(tag, TagUsage()).plus(
                    TagUsage(
                        num_requests=round(work.requests * part),
                        num_prompt_tokens=round(work.prompt_tokens * part),
                        num_cached_tokens=round(work.prompt_tokens * part * work.cached_share),
                        num_new_tokens=round(work.new_tokens * part),
                        prefill_s=prefill_s * part * self._noisy(),
                        decode_s=decode_s * part * self._noisy(),
                    )
                )

    def _noisy(self) -> float:
        return max(0.1, 1 + self.noise * self._random.standard_normal())
