"""A file that only grows, on a disk that may be full."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import shutil
import time
from pathlib import Path

_log = logging.getLogger(__name__)
_WARN_AGAIN_S = 300.0


class GrowingFile:
    """Appends without ever raising for the disk; unbuffered, so what was taken outlives the process.

    What the disk does not take waits in memory and goes before anything later: when there is room again the file goes
    on where it was cut, and nothing in its middle is torn.
    """

    def __init__(self, path: Path) -> None:
        """Opens ``path`` with the first `write`."""
        self._path = path
        self._file: io.FileIO | None = None
        self._waiting = bytearray()
        self._warned_at = -math.inf

    def write(self, data: bytes) -> None:
        """Appends; a disk that does not take it is told in the log, every five minutes at most."""
        self._waiting += data
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab", buffering=0)
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        """Tries once more to write what waits, and closes."""
        self.write(b"")
        if self._waiting:
            _log.warning("%s: its last %d bytes are lost", self._path, len(self._waiting))
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _warn(self, error: OSError) -> None:
        if time.monotonic() - self._warned_at < _WARN_AGAIN_S:
            return
        self._warned_at = time.monotonic()
        _log.warning(
            "%s CANNOT BE WRITTEN: %s; %s; the run goes on, and what is missing is written when it can be",
            self._path, error.strerror, free_space(self._path.parent),
        )  # fmt: skip


def free_space(directory: Path) -> str:
    """How many bytes are free on a directory's file system, in words; never raises for the disk."""
    try:
        return f"{shutil.disk_usage(directory).free} bytes are free"
    except OSError as error:
        return f"its free bytes are not known ({error.strerror})"
