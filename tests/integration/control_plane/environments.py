"""Environments for tests of the EnvManager: one that obeys its arguments, in a child and in the worker itself."""

import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from rollart_hpc.interfaces import EnvironmentProperties


class Obedient:
    """Says ``go SEED`` and then ``go TURN``, ends after ``turns``; does ``fault`` in reset or in its second step."""

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(replayable=True)
    raises_once: ClassVar[bool] = False
    """Whether the next reset of any instance raises."""

    def __init__(self, *, turns: int = 3, fault: str = "", where: str = "step", size: int = 0) -> None:
        self._turns, self._fault, self._where, self._size = turns, fault, where, size

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        if self.raises_once:
            type(self).raises_once = False
            raise RuntimeError("once")
        self._actions: list[str] = []
        observation = self._misbehave(f"go {seed}") if self._where == "reset" else f"go {seed}"
        return observation, {"seed": seed, "last": 0}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._actions.append(action)
        turn = len(self._actions)
        observation: Any = f"go {turn}" + "+" * self._size
        if self._where == "step" and turn == 2:
            observation = self._misbehave(observation)
        return observation, turn / 4, turn == self._turns, False, {"last": turn, "actions": list(self._actions)}

    def close(self) -> None:
        pass

    def _misbehave(self, observation: str) -> Any:
        match self._fault:
            case "hang":
                time.sleep(60)
            case "raise":
                raise RuntimeError("out of luck")
            case "die":
                os._exit(7)
            case "no text":
                return 7
            case "unknown letters":
                return "Zebra"
        return observation


class Light(Obedient):
    """The same in the worker itself."""

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(light=True, replayable=True)


class Forgetful(Light):
    """Promises nothing."""

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(light=True)
