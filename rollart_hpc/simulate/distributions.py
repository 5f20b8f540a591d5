"""Distributions of durations and lengths in a scenario file."""

from __future__ import annotations

import math
import random

from pydantic import model_validator

from rollart_hpc.config.section import NonNegativeFloat, PositiveFloat, Section

_Z99 = 2.3263478740408408
"""The standard normal distribution's 99th percentile."""


class Normal(Section):
    """Mean and standard deviation; what falls below 0 counts as 0."""

    mean: NonNegativeFloat
    std: NonNegativeFloat

    def draw(self, rng: random.Random) -> float:
        """One value."""
        return max(0.0, rng.gauss(self.mean, self.std))


class Lognormal(Section):
    """A long tail: the median and the 99th percentile."""

    median: PositiveFloat
    p99: PositiveFloat

    @model_validator(mode="after")
    def _tail_is_above(self) -> Lognormal:
        if self.p99 < self.median:
            raise ValueError(f"p99 is {self.p99:g}, below the median {self.median:g}; make it at least that")
        return self

    def draw(self, rng: random.Random) -> float:
        """One value."""
        return rng.lognormvariate(math.log(self.median), math.log(self.p99 / self.median) / _Z99)


class Weighted(Section):
    """One of several distributions."""

    weight: NonNegativeFloat
    value: NonNegativeFloat | Normal | Lognormal


class Choice(Section):
    """One of several distributions by weight, as where short and long episodes are mixed."""

    one_of: list[Weighted]

    @model_validator(mode="after")
    def _something_has_weight(self) -> Choice:
        if not any(one.weight for one in self.one_of):
            raise ValueError("no weight is above 0")
        return self

    def draw(self, rng: random.Random) -> float:
        """One value."""
        return draw(rng.choices(self.one_of, [one.weight for one in self.one_of])[0].value, rng)


Distribution = NonNegativeFloat | Normal | Lognormal | Choice
"""A number is always itself."""


def draw(distribution: Distribution, rng: random.Random) -> float:
    """One value of a distribution."""
    return distribution.draw(rng) if isinstance(distribution, Section) else distribution
