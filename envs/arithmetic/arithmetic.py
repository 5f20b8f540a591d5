"""Arithmetic: one sum, one answer; the episode is a pure function of the seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from rollart_hpc.interfaces import EnvironmentProperties

_ANSWER = re.compile("<answer>([0-9]+)</answer>")


class Arithmetic:
    """Asks ``7+5=?`` and reads the first ``<answer>12</answer>`` of the text; leading zeros do not matter.

    Args:
        digits: of each operand; shorter ones are padded with zeros.
        instructions: text before the sum, for models that do not know the format.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(light=True, replayable=True)

    def __init__(self, *, digits: int = 1, instructions: str = "") -> None:
        if digits < 1:
            raise ValueError(f"digits is {digits}; expected 1 or more")
        self._digits = digits
        self._instructions = instructions

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Draws two operands from the seed."""
        rng = Random(seed)
        left, right = rng.randrange(10**self._digits), rng.randrange(10**self._digits)
        self._expected = str(left + right)
        question = f"{left:0{self._digits}d}+{right:0{self._digits}d}=?"
        return self._instructions + question, {"expected": self._expected}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Reads the answer and ends. The reward is 1 for the right sum, else 0."""
        answer = _ANSWER.search(action)
        # Compared as text: a policy may write more digits than int() takes.
        success = answer is not None and (answer[1].lstrip("0") or "0") == self._expected
        info = {"success": success, "answered": answer is not None, "expected": self._expected}
        return "", float(success), True, False, info

    def close(self) -> None:
        """Nothing to free."""
