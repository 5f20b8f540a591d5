"""What the policy's text asks for: the last ``search[...]`` or ``click[...]`` in it.

Invariants: reading takes time linear in the text's length and never raises, whatever the text is. Thoughts may stand
before and after an action; brackets inside it belong to it where they are balanced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_BRACKET = re.compile(r"(?:(?<![a-z0-9])(search|click))?\[|\]", re.IGNORECASE)

LONGEST_READ = 8192
"""Characters from the end of a text in which an action is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One well-formed action; whether the page offers it is the page's affair."""

    verb: Literal["search", "click"]
    argument: str
    """Lower-case, single spaces, not empty."""


def parse_action(text: str) -> Action | None:
    """The last complete action of the text, the outer one where one holds another; None where there is none."""
    text = text[-LONGEST_READ:]
    opened: list[tuple[str | None, int]] = []
    last: tuple[str, str] | None = None
    for bracket in _BRACKET.finditer(text):
        if bracket[0] != "]":
            opened.append((bracket[1], bracket.end()))
        elif opened:
            verb, begin = opened.pop()
            if verb is not None:
                last = verb.lower(), text[begin : bracket.start()]
    if last is None:
        return None
    argument = as_typed(last[1])
    return Action(verb="search" if last[0] == "search" else "click", argument=argument) if argument else None


def as_typed(text: str) -> str:
    """The form in which texts of pages and arguments of actions are compared."""
    return " ".join(text.lower().split())
