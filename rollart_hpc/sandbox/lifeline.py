"""What tells the sandboxes of this process that it is gone, whatever ended it: a pipe that nobody else can write to."""

from __future__ import annotations

import atexit
import os
import threading

from rollart_hpc.sandbox.per_process import PerProcess
from rollart_hpc.temporary import OwnDirectory


class Lifeline:
    """Of this process."""

    def __init__(self) -> None:
        self.end, self.own_end = os.pipe()
        """``end`` is at its end when this process is; ``own_end`` stays here."""
        self._directory: OwnDirectory | None = None
        self._lock = threading.Lock()

    @property
    def directory(self) -> str:
        """A directory on the node's disk that ends with this process."""
        with self._lock:
            if self._directory is None:
                self._directory = OwnDirectory("sandboxes")
                atexit.register(self._directory.remove)
            return str(self._directory.path)


def _let_go(parents: Lifeline) -> None:
    """In a forked copy: it shall not keep the sandboxes of its parent."""
    os.close(parents.own_end)
    os.close(parents.end)


lifeline = PerProcess(Lifeline, leave=_let_go)
"""That of this process."""
