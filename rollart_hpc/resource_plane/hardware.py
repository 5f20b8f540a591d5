"""Classes of hardware and their figures: what role defaults and the profiler go by (paper section 3.1, table 2).

Known figures are those of `figures.toml`, of one device. A class that is called anything else has the figures that the
config gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

from rollart_hpc.config.schema import HardwareSection, RunConfig
from rollart_hpc.resource_plane.figures import known_figures

CPU = "cpu"
"""The class without an accelerator; every other one is a GPU."""
_PREDICTION_KEYS = ("tflops", "memory_gb_s")


class HardwareClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class; a figure that nobody gave is None."""

    name: str
    tflops: float | None = None
    """Dense BF16 of one device, TFLOP/s."""
    memory_gb: float | None = None
    memory_gb_s: float | None = None
    """Memory bandwidth of one device, GB/s."""
    relative_cost: float | None = None
    """Of one device, in a unit that all classes share; an H20 costs 1."""

    @property
    def is_gpu(self) -> bool:
        """Whether models train and generate on it where there is a choice."""
        return self.name.casefold() != CPU

    @property
    def bytes_per_flop(self) -> float:
        """Memory bandwidth for each unit of compute: high is bandwidth-optimised; 0 where a figure is missing."""
        if self.tflops is None or self.memory_gb_s is None:
            return 0.0
        return self.memory_gb_s / (self.tflops * 1000)


@cache
def known_hardware() -> Mapping[str, HardwareClass]:
    """The classes of `figures.toml` by name."""
    figures = known_figures().hardware
    return {name: HardwareClass(name=name, **one.model_dump(exclude={"source"})) for name, one in figures.items()}


def hardware_class(name: str, section: HardwareSection | None = None) -> HardwareClass:
    """The figures of a class: what the config gives, else what is known; case does not matter."""
    classes = known_hardware().values()
    known = next((one for one in classes if one.name.casefold() == name.casefold()), HardwareClass(name=name))
    given = section.model_dump(exclude_none=True) if section is not None else {}
    return msgspec.structs.replace(known, name=name, **given)


def hardware_classes(config: RunConfig) -> dict[str, HardwareClass]:
    """Every class of the run's pools with its figures, by name, in the order of the pools."""
    names = dict.fromkeys(pool.hardware for pool in config.pools.values())
    return {name: hardware_class(name, config.hardware.get(name)) for name in names}


def missing_figures(hardware: HardwareClass) -> list[str]:
    """Keys of ``[hardware.NAME]`` without which the speed of a class cannot be predicted."""
    return [key for key in _PREDICTION_KEYS if getattr(hardware, key) is None]


def by_compute(classes: Iterable[HardwareClass]) -> list[HardwareClass]:
    """Compute-optimised first: the most TFLOP/s; of equal ones the first. Unknown figures come last."""
    return sorted(classes, key=lambda one: -(one.tflops or 0))


def by_bandwidth(classes: Iterable[HardwareClass]) -> list[HardwareClass]:
    """Bandwidth-optimised first: the most memory bandwidth for each FLOP/s. Unknown figures come last."""
    return sorted(classes, key=lambda one: -one.bytes_per_flop)
