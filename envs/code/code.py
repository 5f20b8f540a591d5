"""A problem, a program: the answer's last block is run on hidden tests by the reward function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from rollart_hpc.interfaces import EnvironmentProperties

INSTRUCTIONS = "Solve the problem below in Python. Put the whole program into one ```python block.\n\n"


class Code:
    """One problem; graded by `rollart_hpc.reward_functions.code_tests`.

    Args:
        instructions: text before the problem.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(light=True, replayable=True)

    def __init__(self, *, instructions: str = INSTRUCTIONS) -> None:
        self._instructions = instructions

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Shows the problem of the row, or the one of those that ship that the seed names."""
        row = task or _problems()[seed % len(_problems())]
        if not isinstance(row.get("problem"), str) or not row.get("tests"):
            raise ValueError(f"the row has {sorted(row)}; expected the fields problem, a text, and tests")
        return self._instructions + row["problem"], {"tests": row["tests"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes the answer, whatever it is. The reward is 0: it is the reward function that grades."""
        return "", 0.0, True, False, {}

    def close(self) -> None:
        """Nothing to free."""


@lru_cache(maxsize=1)
def _problems() -> tuple[dict[str, Any], ...]:
    lines = (Path(__file__).parent / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)
