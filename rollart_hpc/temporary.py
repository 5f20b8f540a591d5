"""Directories on this node's own disk that end with their process, also when it is killed.

A directory's owner holds a lock in it. The kernel frees the lock with the process, whatever ended it; whoever makes
the next directory on the node removes those whose lock is free. What libraries leave under ``TMPDIR`` goes with it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_PREFIX = "rollart-"
_LOCK = ".lock"


class OwnDirectory:
    """A directory of this process."""

    def __init__(self, kind: str) -> None:
        """Makes it, ``kind`` in its name, after removing those of processes that are gone."""
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-"))
        # Locked before it has its name: nobody takes it for a dead one's in between.
        fresh = self.path / f"{_LOCK}.new"
        self._lock = fresh.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        fresh.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Removes it with all that is in it; may be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


@contextmanager
def own_temporary_directory(kind: str) -> Generator[Path]:
    """Makes an own directory the place of all temporary files of this process and its children."""
    directory = OwnDirectory(kind)
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory.path)
    try:
        yield directory.path
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        directory.remove()


def sweep() -> list[Path]:
    """Removes this user's directories whose process is gone; returns them."""
    removed: list[Path] = []
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if lock.stat().st_uid != os.getuid():
                continue
            with lock.open("r+") as file:
                if not _is_free(file):
                    continue
                shutil.rmtree(lock.parent, ignore_errors=True)
                removed.append(lock.parent)
        except OSError:
            continue
    return removed


def _is_free(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
