"""The answer in a box, as GEM and the mathematical data sets have it."""

from __future__ import annotations

_BOX = "\\boxed{"


def boxed_answer(text: str) -> str | None:
    """What the last ``\\boxed{}`` of the text holds; None if there is none, or the last one never ends."""
    begin = text.rfind("\\boxed")
    if begin < 0 or not text.startswith(_BOX, begin):
        return None
    depth = 0
    for position in range(begin + len(_BOX) - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin + len(_BOX) : position].strip()
    return None
