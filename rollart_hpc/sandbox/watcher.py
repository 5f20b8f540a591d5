"""One thread that looks at the running commands of all sandboxes of this process and ends those that pass a bound.

Consumes: the proc file system of each sandbox. Produces: the ending of a command, and its kill. Waits for: a command to
run; then it looks again after a twentieth of a second, or longer where the looking itself would take a tenth of a core.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from rollart_hpc.sandbox.per_process import PerProcess

_log = logging.getLogger(__name__)
_PERIOD_S = 0.05
_SHARE = 0.1
"""Of one core, at most."""


class Watched(Protocol):
    """A command that is running."""

    def check(self) -> None:
        """Looks at its bounds; never raises, never waits."""
        ...


class Watcher:
    """The commands that are running."""

    def __init__(self) -> None:
        self._commands: set[Watched] = set()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="sandbox-watcher", daemon=True).start()

    def add(self, command: Watched) -> None:
        """Looks at it from now on."""
        with self._changed:
            self._commands.add(command)
            self._changed.notify()

    def remove(self, command: Watched) -> None:
        """Looks at it no more."""
        with self._changed:
            self._commands.discard(command)

    def _run(self) -> None:
        pause = _PERIOD_S
        while True:
            with self._changed:
                while not self._commands:
                    self._changed.wait()
            time.sleep(pause)
            with self._changed:
                commands = list(self._commands)
            begin = time.thread_time()
            for command in commands:
                try:
                    command.check()
                except Exception:  # one that cannot be looked at must not leave all others unbounded
                    _log.exception("the bounds of a sandbox could not be looked at")
            pause = max(_PERIOD_S, (time.thread_time() - begin) / _SHARE)


watcher = PerProcess(Watcher)
"""That of this process."""
