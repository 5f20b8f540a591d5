"""Objects that a process has one of, made when they are first asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """One object; a forked copy of the process, which has none of its threads, makes its own."""

    def __init__(self, make: Callable[[], T], *, leave: Callable[[T], None] | None = None) -> None:
        """Makes nothing yet.

        Args:
            make: makes the object; may ask for those of others.
            leave: lets go, in a forked copy, of what is the parent's.
        """
        self._make, self._leave = make, leave
        self._made: list[T] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> T:
        """The object of this process."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    def _forget(self) -> None:
        # Another thread may have held it when the process was forked.
        self._lock = threading.Lock()
        if self._made and self._leave:
            self._leave(self._made[0])
        self._made = []
