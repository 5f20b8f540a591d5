"""Finds the action in a policy's text and reads it as an element of a gymnasium space.

An action stands in the last ``<answer>...</answer>``, else in the last ``\\boxed{...}``, else it is the whole text.
Whatever cannot be read is an `IllegalAction`, which says what was expected: the policy sees it as an observation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rollart_hpc.envs.adapters.boxed import boxed_answer

_MAX_LENGTH = 10_000
"""Characters of an action; more is no action, whatever the space."""
_ANSWER_END = "</answer>"
_NUMBERS = re.compile(r"[\s,;]+")


class IllegalAction(ValueError):
    """The text holds no action of the space; the message is for the policy."""


def marked_text(text: str) -> str:
    """What the policy marked as its action, without white space around it."""
    end = text.rfind(_ANSWER_END)
    begin = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if begin >= 0:
        return text[begin + len("<answer>") : end].strip()
    boxed = boxed_answer(text)
    return text.strip() if boxed is None else boxed


def read_action(text: str, space: gym.Space[Any], names: Sequence[str]) -> Any:
    """The element of the space that the text names.

    Args:
        text: what the policy wrote.
        space: the environment's action space.
        names: of a discrete space's actions, in order; none: numbers.

    Raises:
        IllegalAction: the text names none.
    """
    marked = marked_text(text)
    if len(marked) > _MAX_LENGTH:
        raise IllegalAction(f"{len(marked)} characters; {expected(space, names)}")
    try:
        action = _element(space, _value(space, marked, names))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        raise IllegalAction(f"{marked[:80]!r}; {expected(space, names)}") from None
    if not space.contains(action):
        raise IllegalAction(f"{marked[:80]!r}; {expected(space, names)}")
    return action


def expected(space: gym.Space[Any], names: Sequence[str]) -> str:
    """What an action of this space looks like, in words."""
    if names:
        return f"expected one of {', '.join(names)}"
    match space:
        case gym.spaces.Discrete():
            return f"expected a whole number from {space.start} to {space.start + space.n - 1}"
        case gym.spaces.Box():
            low, high = float(space.low.min()), float(space.high.max())
            return f"expected {math.prod(space.shape)} numbers from {low:g} to {high:g}, separated by spaces"
        case gym.spaces.MultiDiscrete() | gym.spaces.MultiBinary():
            return f"expected {math.prod(space.shape)} whole numbers, separated by spaces"
        case gym.spaces.Text():
            return f"expected a text of {space.min_length} to {space.max_length} characters"
        case _:
            return f"expected JSON of {space}"


def _value(space: gym.Space[Any], marked: str, names: Sequence[str]) -> Any:
    """The marked text as a number, a list of numbers, a text, or the value that its JSON describes."""
    match space:
        case gym.spaces.Discrete() if names:
            return int(space.start) + [name.lower() for name in names].index(marked.lower())
        case gym.spaces.Text():
            return marked
        case gym.spaces.Discrete():
            return _whole(marked)
        case gym.spaces.Box() | gym.spaces.MultiDiscrete() | gym.spaces.MultiBinary():
            if marked.startswith("["):
                return json.loads(marked)
            return [float(number) for number in _NUMBERS.split(marked.strip("()"))]
        case _:
            return json.loads(marked)


def _element(space: gym.Space[Any], value: Any) -> Any:
    """The plain value in the types that the space's `contains` asks for."""
    match space:
        case gym.spaces.Discrete():
            return int(_whole(value))
        case gym.spaces.Box():
            numbers = np.asarray(value, np.float64).reshape(space.shape)
            if not np.isfinite(numbers).all():
                raise ValueError("no finite numbers")
            return numbers.astype(space.dtype)
        case gym.spaces.MultiDiscrete() | gym.spaces.MultiBinary():
            numbers = np.asarray(value, np.float64).reshape(space.shape)
            if (numbers != np.floor(numbers)).any():
                raise ValueError("no whole numbers")
            return numbers.astype(space.dtype)
        case gym.spaces.Dict():
            if not isinstance(value, Mapping) or set(value) != set(space.spaces):
                raise ValueError("other names")
            return {name: _element(part, value[name]) for name, part in space.spaces.items()}
        case gym.spaces.Tuple():
            if not isinstance(value, list) or len(value) != len(space.spaces):
                raise ValueError("another length")
            return tuple(_element(part, element) for part, element in zip(space.spaces, value, strict=True))
        case _:
            return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("no whole number")
    return int(value)
