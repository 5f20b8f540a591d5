"""The global random states of environments that live side by side in one process.

Libraries that draw from `random` or `numpy.random` itself, and seed them, would disturb each other's episodes. Every
instance has its own states here, which are in place while it is called. They are changed only when another instance is
called than before: a lone one pays nothing.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import Any


def _fresh_numpy() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.RandomState().get_state(legacy=False)


@dataclass(slots=True)
class _States:
    python: tuple[Any, ...] = field(default_factory=lambda: random.Random().getstate())
    numpy: Any = field(default_factory=_fresh_numpy)


class RandomStates:
    """The states of all instances of one process, by instance; a new one begins with states of its own."""

    def __init__(self) -> None:
        self._states: dict[int, _States] = {}
        self._current: int | None = None

    def install(self, instance: int) -> None:
        """Puts an instance's states in place; they are its own until another one's are."""
        if instance == self._current:
            return
        numpy = sys.modules.get("numpy")
        if self._current is not None:
            left = self._states[self._current]
            left.python = random.getstate()
            left.numpy = None if numpy is None else numpy.random.get_state(legacy=False)
        entered = self._states.get(instance)
        if entered is None:
            entered = self._states[instance] = _States()
        random.setstate(entered.python)
        if numpy is not None:
            # numpy may have been imported since this instance was last called.
            numpy.random.set_state(entered.numpy or _fresh_numpy())
        self._current = instance

    def forget(self, instance: int) -> None:
        """The instance is gone; one with its number begins anew."""
        self._states.pop(instance, None)
        if instance == self._current:
            self._current = None
