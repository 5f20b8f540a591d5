"""The writer of the run's journal: one process at a time, the controller.

What one call appends is one frame: a reader sees all of an event or nothing. What cannot be written is taken back, so
that the journal always ends in a whole frame as long as its writer lives; what a killed one leaves is set aside by the
next. A finished trajectory is durable here before it is acknowledged on the bus.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from rollart_hpc.control_plane.journal.compaction import forget_compacted, sweep_unfinished
from rollart_hpc.control_plane.journal.frames import (
    JOURNAL_DIRECTORY,
    pack,
    segment_path,
    segments_of,
    sync_directory,
)
from rollart_hpc.control_plane.journal.reader import Damage, JournalReader
from rollart_hpc.control_plane.journal.records import Record
from rollart_hpc.errors import JournalError

_log = logging.getLogger(__name__)


class Journal:
    """The journal of a run, open for appending."""

    def __init__(self, run_directory: Path) -> None:
        """Opens the last segment; what cannot be read is set aside first, in files beside it.

        Raises:
            JournalError: the directory or a file in it cannot be written.
        """
        self._directory = run_directory / JOURNAL_DIRECTORY
        self._lost = ""
        """Not empty: why what is on the disk is not what was appended; nothing more can be."""
        with _told(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            sweep_unfinished(self._directory)
            reader = JournalReader(run_directory)
            for _ in reader.frames():
                pass
            if reader.damage is not None:
                _set_aside(self._directory, reader.damage)
            self._number = max(1, len(segments_of(self._directory)))
            self._descriptor = self._open(self._number)
            self._size_bytes = self._durable_bytes = os.fstat(self._descriptor).st_size

    def append(self, records: Iterable[Record], *, durable: bool = False) -> None:
        """Appends the records of one event; ``durable`` waits until everything appended so far is on the disk.

        Raises:
            JournalError: the journal could not be written, and is as it was before the call. If it cannot be made
                durable, every later call raises too, for what was appended before may be lost with it.
        """
        self._check()
        if event := list(records):
            data = pack(event)
            with _told(self._path()):
                try:
                    _write(self._descriptor, data)
                except OSError:
                    self._take_back(self._size_bytes)
                    raise
            self._size_bytes += len(data)
        if durable:
            self._make_durable()

    def rotate(self) -> None:
        """Makes everything durable and goes on in a new segment, so that the old one can be compacted.

        Raises:
            JournalError: as `append`; the old segment stays open.
        """
        self._check()
        self._make_durable()
        if not self._size_bytes:
            return
        with _told(self._directory):
            descriptor = self._open(self._number + 1)
        os.close(self._descriptor)
        self._number, self._descriptor = self._number + 1, descriptor
        self._size_bytes = self._durable_bytes = 0

    def close(self) -> None:
        """Makes everything durable and closes."""
        try:
            if not self._lost:
                self._make_durable()
        finally:
            os.close(self._descriptor)

    def _path(self) -> Path:
        return segment_path(self._directory, self._number)

    def _open(self, number: int) -> int:
        descriptor = os.open(segment_path(self._directory, number), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        sync_directory(self._directory)
        return descriptor

    def _check(self) -> None:
        if self._lost:
            raise JournalError(self._lost)

    def _make_durable(self) -> None:
        try:
            with _told(self._path()):
                os.fdatasync(self._descriptor)
        except JournalError as error:
            # The system may have dropped any page since the last success and will not say so again.
            self._lost = str(error)
            self._take_back(self._durable_bytes)
            raise
        self._durable_bytes = self._size_bytes

    def _take_back(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            self._lost = _text(self._path(), error)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _set_aside(directory: Path, damage: Damage) -> None:
    """Takes what cannot be read, and all that was built upon it, out of the journal; deletes nothing.

    The damage itself goes last: until then the next start finds it and does this again.
    """
    suffix = f".damaged-{time.time_ns()}"
    forget_compacted(directory)
    for path in reversed(damage.later):
        path.rename(path.with_name(path.name + suffix))
    sync_directory(directory)
    if damage.size_bytes:
        aside = damage.segment.with_name(damage.segment.name + suffix)
        with damage.segment.open("r+b") as segment, aside.open("xb") as copy:
            segment.seek(damage.offset)
            shutil.copyfileobj(segment, copy)
            copy.flush()
            os.fsync(copy.fileno())
            segment.truncate(damage.offset)
            os.fsync(segment.fileno())
    if damage.is_torn:
        _log.warning("journal: %s; an interrupted write left it, it is now in *%s", damage, suffix)
    else:
        _log.error(
            "JOURNAL DAMAGED: %s. All that happened from there on is lost to this run, which goes on from what can be "
            "read; the rest is in %s/*%s",
            damage,
            directory,
            suffix,
        )


@contextmanager
def _told(path: Path) -> Generator[None]:
    """Errors of the system as ours."""
    try:
        yield
    except OSError as error:
        raise JournalError(_text(path, error)) from error


def _text(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what_to_do = "make room there or raise the limit"
    else:
        what_to_do = "see that the file system is there and lets this user write"
    return (
        f"the journal could not be written: {path}: {error.strerror or error}; {what_to_do}, then resume the run: "
        "nothing that was acknowledged is lost"
    )
