"""Environments for ``rollart-hpc bench environments``: one of each kind that a host treats in its own way."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from rollart_hpc.interfaces import EnvironmentProperties

HANG = "hang"
"""The action after which a call does not return."""
_TURNS = 8
_OBSERVATION = "x" * 400
_WAIT_S = 0.02


class Light:
    """Ends after eight turns; draws from a generator of its own."""

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(light=True, replayable=True)

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Starts an episode."""
        self._rng, self._turn = random.Random(seed), 0
        return self._say(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes any text; one of them for ever."""
        while action == HANG:
            time.sleep(3600)
        self._turn += 1
        return self._say(), 0.0, self._turn == _TURNS, False, {"turn": self._turn}

    def close(self) -> None:
        """Holds nothing."""

    def _say(self) -> str:
        return f"{self._rng.random()} {_OBSERVATION}"


class Shared(Light):
    """The same in a child with others, and drawn from the global state."""

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(shares_process=True, replayable=True)

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Starts an episode."""
        random.seed(seed)
        return super().reset(seed=seed, task=task)

    def _say(self) -> str:
        return f"{random.random()} {_OBSERVATION}"


class Waiting(Light):
    """The same in threads: each step waits for something else."""

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(thread_safe=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Waits, then as above."""
        time.sleep(_WAIT_S)
        return super().step(action)


class Alone(Light):
    """The same in a process of its own."""

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties()
