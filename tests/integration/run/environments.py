"""Environments that fail now and then; importable by the run's processes."""

import os
import random
import time

from rollart_hpc.interfaces import EnvironmentProperties
from rollart_hpc.types import Episode


class Unreliable:
    """Asks one sum; one episode in ``one_in`` goes wrong in the given way."""

    properties = EnvironmentProperties()

    def __init__(self, mode: str, one_in: int = 6) -> None:
        self._mode, self._one_in = mode, one_in

    def reset(self, *, seed: int) -> tuple[str, dict]:
        self._goes_wrong = random.SystemRandom().randrange(self._one_in) == 0
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


async def score(episode: Episode) -> float:
    return float(len(episode.turns[0].action) % 7)
