"""The figures of figures.toml: what the project knows of hardware, networks and models, and what the paper measured."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TypeVar

from rollart_hpc.config.load import read_toml, validate
from rollart_hpc.config.section import Line, PositiveFloat, PositiveInt, Section
from rollart_hpc.errors import ConfigError

FIGURES_FILE = Path(__file__).with_name("figures.toml")

T = TypeVar("T")


class _Sourced(Section):
    source: Line
    """Where the figures are from."""


class HardwareFigures(_Sourced):
    """One device of a class."""

    tflops: PositiveFloat
    """Dense BF16."""
    memory_gb: PositiveFloat
    memory_gb_s: PositiveFloat
    relative_cost: PositiveFloat | None = None
    """An H20 costs 1; None where nobody names it."""


class NetworkFigures(_Sourced):
    """One link, one direction."""

    gbit_s: PositiveFloat

    @property
    def gb_s(self) -> float:
        """The same in GB/s."""
        return self.gbit_s / 8


class ServedModel(_Sourced):
    """A dense decoder, as far as time and memory go by it."""

    parameters: PositiveFloat
    layers: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    bytes_per_parameter: PositiveFloat
    """Of the weights, and of each number in the KV."""

    @property
    def weight_bytes(self) -> float:
        """All weights."""
        return self.parameters * self.bytes_per_parameter

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_parameter


class IterationFigures(_Sourced):
    """A synchronous iteration and the shares of its phases."""

    seconds: PositiveFloat
    generation: PositiveFloat
    training: PositiveFloat
    environment_reset: PositiveFloat
    rest: PositiveFloat


class AffinityFigures(_Sourced):
    """Rollout time on one class over that on another, of equal cost."""

    frozen_lake_h800_to_h20: PositiveFloat
    gem_math_h20_to_h800_low: PositiveFloat
    gem_math_h20_to_h800_high: PositiveFloat


class TrajectoryLevelFigures(_Sourced):
    """Speedup over batched interaction where the environment's latency varies."""

    latency_mean_s: PositiveFloat
    speedup_at_std_1: PositiveFloat
    speedup_at_std_10: PositiveFloat


class RedundancyFigures(_Sourced):
    """Speedup by redundant environments."""

    speedup: PositiveFloat


class TimeToScoreFigures(_Sourced):
    """Speedup over other systems to the same score."""

    over_sync_plus: PositiveFloat
    over_one_off: PositiveFloat
    over_areal: PositiveFloat


class PaperFigures(Section):
    """What the paper measured."""

    iteration: IterationFigures
    affinity: AffinityFigures
    trajectory_level: TrajectoryLevelFigures
    redundancy: RedundancyFigures
    time_to_score: TimeToScoreFigures


class Figures(Section):
    """All of the file."""

    hardware: dict[str, HardwareFigures]
    networks: dict[str, NetworkFigures]
    models: dict[str, ServedModel]
    paper: PaperFigures

    def network(self, name: str) -> NetworkFigures:
        """The figures of a network.

        Raises:
            ConfigError: there are none.
        """
        return _named(self.networks, "network", name)

    def model(self, name: str) -> ServedModel:
        """The figures of a model.

        Raises:
            ConfigError: there are none.
        """
        return _named(self.models, "model", name)


def read_figures(path: Path) -> Figures:
    """The figures of a file.

    Raises:
        ConfigError: the file cannot be read, or a figure is missing or wrong; every fault is listed.
    """
    return validate(Figures, read_toml(path, expected="a TOML file of figures"), str(path))


@cache
def known_figures() -> Figures:
    """Those that come with the package."""
    return read_figures(FIGURES_FILE)


def _named(figures: dict[str, T], kind: str, name: str) -> T:
    if name not in figures:
        raise ConfigError(f"there are no figures of a {kind} {name!r}; known are {', '.join(figures)}")
    return figures[name]
