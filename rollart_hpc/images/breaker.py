"""Whether a second level is worth asking: once it failed, no process of the node waits for it again for a while.

The state is one small file on the node's own disk: its age says when the level was last tried in vain. When that is
long enough ago, one process tries and the others go on without.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rollart_hpc.images.source import MissingError, SourceDownError

_log = logging.getLogger(__name__)
_OPEN_S = 60.0


class NodeBreaker:
    """Of one level.

    Args:
        file: its state.
        name: of the level, for the log.
        open_s: how long it is left alone after a failure.
    """

    def __init__(self, file: Path, name: str, *, open_s: float = _OPEN_S) -> None:
        self._file, self._name, self._open_s = file, name, open_s

    @contextmanager
    def guarding(self) -> Generator[None]:
        """Around a question to the level.

        Raises:
            SourceDownError: it is not asked now.
        """
        if not self._admits():
            raise SourceDownError(f"{self._name} did not answer a while ago and is left out")
        try:
            yield
        except SourceDownError as error:
            self._failed(error)
            raise
        except MissingError:
            self._answered()
            raise
        self._answered()

    def _admits(self) -> bool:
        """Whether to ask now; of an open breaker whose time is over the caller takes the turn."""
        try:
            age_s = time.time() - self._file.stat().st_mtime
        except FileNotFoundError:
            return True
        if 0 <= age_s < self._open_s:
            return False
        self._touch()
        return True

    def _failed(self, why: Exception) -> None:
        if not self._file.exists():
            _log.warning("%s is left out for %g s at a time until it answers: %s", self._name, self._open_s, why)
        self._touch()

    def _answered(self) -> None:
        if self._file.exists():
            _log.warning("%s answers again", self._name)
            self._file.unlink(missing_ok=True)

    def _touch(self) -> None:
        # A full disk cannot even take an empty file; then the level is asked more often than it should be.
        with contextlib.suppress(OSError):
            os.close(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.utime(self._file)
