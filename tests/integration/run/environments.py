"""Environments that fail now and then; importable by the run's processes."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollart_hpc.interfaces import EnvironmentProperties
from rollart_hpc.types import Episode


class Unreliable:
    """Asks one sum; of all processes' episodes the first and then one in ``one_in`` go wrong in the given way."""

    properties = EnvironmentProperties()

    def __init__(self, mode: str, episodes: str, one_in: int = 6) -> None:
        self._mode, self._episodes, self._one_in = mode, Path(episodes), one_in

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict]:
        with self._episodes.open("ab", buffering=0) as file:
            file.write(b".")
            number = file.tell()
        self._goes_wrong = number % self._one_in == 1
        if self._goes_wrong and self._mode == "hang_in_reset":
            time.sleep(3600)
        return "7+5=?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        if self._goes_wrong:
            match self._mode:
                case "hang_in_step":
                    time.sleep(3600)
                case "raise":
                    raise RuntimeError("the simulator is broken")
                case "die":
                    os._exit(3)
        return "", 0.0, True, False, {}

    def close(self) -> None:
        return


class Patient:
    """Three turns that take a while; writes down which environment worker's process each step is made for."""

    properties = EnvironmentProperties(replayable=True)

    def __init__(self, steps: str) -> None:
        self._steps, self._num_steps = Path(steps), 0

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict]:
        self._num_steps = 0
        return "?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        with self._steps.open("a") as file:
            file.write(f"{os.getppid()}\n")
        time.sleep(0.5)
        self._num_steps += 1
        return "?", 0.0, self._num_steps == 3, False, {}

    def close(self) -> None:
        return


async def score(episode: Episode) -> float:
    return float(len(episode.turns[0].action) % 7)
