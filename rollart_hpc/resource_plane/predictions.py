"""What an iteration's generation would take under any mapping of tags to hardware classes (paper section 9).

A tag's work on a class takes what it took there when it was there; where it never was, what it took on another class,
prefill scaled by TFLOP/s and decode by memory bandwidth (R1: prefill is bound by compute, decode by memory). The
workers of a class share its load; the class with the largest one is the time of the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rollart_hpc.resource_plane.hardware import HardwareClass
from rollart_hpc.resource_plane.profile import Profile, Speed

_ENOUGH_REQUESTS = 16
"""With fewer, what a tag took on a class is the luck of those."""

Mapped = Mapping[str, str]
"""Hardware class by tag; a tag that is not there is served by any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a tag's work of an iteration takes on one class."""

    seconds: float
    """Of engine time."""
    measured_on: str
    """The class that it was measured on; another one where it is scaled."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the run is like now."""

    profile: Profile
    workers: Mapping[str, int]
    """Live generation workers by hardware class, of the classes that may serve."""
    hardware: Mapping[str, HardwareClass]
    """Figures by class."""

    @cached_property
    def tags(self) -> list[str]:
        """Those with work."""
        return sorted({speed.tag for speed in self.profile.speeds if self.profile.work(speed.tag).requests > 0})

    @cached_property
    def costs(self) -> dict[str, dict[str, Cost]]:
        """By tag and class; a class for which nothing can be said is not there."""
        return {tag: self._costs_of(tag) for tag in self.tags}

    def loads(self, mapped: Mapped) -> dict[str, float]:
        """Seconds that each worker of each class is busy in an iteration.

        A tag that is mapped to no class, or to one that has no worker or no figures, is spread over all classes so
        that they are done with it at the same time, which is what the fewest outstanding tokens come to.
        """
        loads = dict.fromkeys(self.workers, 0.0)
        for tag, costs in self.costs.items():
            hardware = mapped.get(tag)
            if hardware in costs:
                loads[hardware] += costs[hardware].seconds / self.workers[hardware]
            elif rates := {name: self.workers[name] / max(1e-12, cost.seconds) for name, cost in costs.items()}:
                for name in rates:
                    loads[name] += 1 / sum(rates.values())
        return loads

    def time_s(self, mapped: Mapped) -> float:
        """Seconds of the class that is done last."""
        return max(self.loads(mapped).values(), default=0.0)

    def _costs_of(self, tag: str) -> dict[str, Cost]:
        there = {speed.hardware: speed for speed in self.profile.speeds if speed.tag == tag and speed.num_requests}
        most = max(there.values(), key=lambda speed: speed.num_requests, default=None)
        costs: dict[str, Cost] = {}
        for name in self.workers:
            speed = there.get(name)
            if speed is None or speed.num_requests < min(_ENOUGH_REQUESTS, most.num_requests if most else 0):
                speed = most
            seconds = None if speed is None else self._seconds(tag, speed, name)
            if speed is not None and seconds is not None:
                costs[name] = Cost(seconds=seconds, measured_on=speed.hardware)
        return costs

    def _seconds(self, tag: str, speed: Speed, hardware: str) -> float | None:
        """The tag's work at a speed, which may be that of another class; None where that cannot be scaled."""
        work, there = self.profile.work(tag), speed.when_there
        prefill_s = there.prefill_s * _ratio(work.computed_tokens, there.computed_tokens)
        decode_s = there.decode_s * _ratio(work.new_tokens, there.new_tokens)
        if hardware == speed.hardware:
            return prefill_s + decode_s
        source, target = self.hardware.get(speed.hardware), self.hardware.get(hardware)
        if source is None or target is None:
            return None
        if not (source.tflops and target.tflops and source.memory_gb_s and target.memory_gb_s):
            return None
        return prefill_s * source.tflops / target.tflops + decode_s * source.memory_gb_s / target.memory_gb_s


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
