"""Policies that need no model: random play, and nonsense."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

AVAILABLE_ACTIONS = "available_actions"
"""Key of an info whose value lists texts that are actions now; an environment may give it for players."""
WORDS = (
    "left",
    "right",
    "up",
    "down",
    "yes",
    "no",
    "0",
    "1",
    "7",
    "42",
    "look",
    "wait",
    "search[red shoes]",
    "ls",
    "help",
)
NONSENSE: Mapping[str, str] = {
    "empty": "",
    "blank": " \n\t ",
    "long": "x" * 1_000_000,
    "many lines": "\n" * 10_000,
    "control characters": "\x00\x01\x1b[2J\x7f",
    "Unicode": "Größe ☃ 🐉 \u202eright to left\u200b",
    "open tags": "<answer><answer>[[[((({{{\\boxed{\\boxed{",
    "a format string": "%s%n {0} {name} $(reboot) `id` '; DROP TABLE x; --",
    "a huge number": "9" * 5_000,
    "JSON": '{"name": null, "arguments": [[[]]]}',
    "a code block": "```bash\n```\n```",
}
"""What a policy may write before it has learnt anything, by what it is."""


class RandomPolicy:
    """Any of the actions that the environment names, or else of a list of words."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def act(self, info: Mapping[str, Any]) -> str:
        """The next action after an observation with this info."""
        named = info.get(AVAILABLE_ACTIONS)
        texts = [one for one in cast("Sequence[object]", named) if isinstance(one, str)] if _is_list(named) else []
        return self._rng.choice(texts or WORDS)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
