"""The run's journal: an append-only file of what happened to every trajectory.

The ledger is its fold: `replay` rebuilds the books from the file alone. A record is length, CRC-32 and body; a
torn or damaged tail, as a hard kill leaves it, ends the reading and is cut off by the next writer. A finished
trajectory is durable here before it is acknowledged on the bus.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.control_plane.ledger import Ledger
from rollart_hpc.types import Outcome, Trajectory

_log = logging.getLogger(__name__)
JOURNAL_FILE = "journal.bin"
_HEADER_BYTES = 8


class Dispatched(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trajectory was handed to an environment worker."""

    trajectory_id: str
    group_id: str
    task: str
    seed: int


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trajectory came back, scored or failed."""

    trajectory: Trajectory


class BatchFormed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """These groups are the batch of ``step``; written before it is trained."""

    step: int
    group_ids: tuple[str, ...]


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trajectory's outcome."""

    trajectory_id: str
    outcome: Outcome
    cause: str = ""


class AttemptStarted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A new attempt goes on from ``step``; what was pending before is dispatched again under new ids."""

    attempt: int
    step: int


Record = Dispatched | Finished | BatchFormed | Ended | AttemptStarted
ATTEMPT_ENDED = "attempt ended"


class Journal:
    """The writer; one process at a time, the controller."""

    def __init__(self, path: Path) -> None:
        """Opens ``path`` for appending; what cannot be read at its end is set aside in a file beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        _set_damage_aside(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, records: Iterable[Record], *, durable: bool = False) -> None:
        """Appends records in order; ``durable`` waits until they are on the disk."""
        frames = b"".join(_frame(codec.encode(record)) for record in records)
        written = 0
        while written < len(frames):
            written += os.write(self._descriptor, frames[written:])
        if durable:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Makes everything durable and closes."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)


def read_journal(path: Path) -> Iterator[Record]:
    """The records up to the first torn or damaged one; nothing when there is no file."""
    if path.exists():
        for body, _ in _frames(path):
            yield codec.decode(body, Record)  # pyright: ignore[reportArgumentType]


def replay(records: Iterable[Record]) -> Ledger:
    """The ledger that these records make."""
    ledger = Ledger()
    for record in records:
        match record:
            case Dispatched():
                ledger.dispatch(record.trajectory_id, record.task)
            case Ended():
                ledger.end(record.trajectory_id, record.outcome, record.cause)
            case AttemptStarted():
                for trajectory_id in ledger.pending_ids():
                    ledger.end(trajectory_id, Outcome.FAILED, ATTEMPT_ENDED)
            case Finished() | BatchFormed():
                pass
    return ledger


def _set_damage_aside(path: Path) -> None:
    if not path.exists():
        return
    whole = sum(size for _, size in _frames(path))
    with path.open("r+b") as file:
        file.seek(whole)
        damaged = file.read()
        if not damaged:
            return
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        aside.write_bytes(damaged)
        file.truncate(whole)
    _log.warning("journal: the last %d bytes cannot be read; they are in %s", len(damaged), aside)


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def _frames(path: Path) -> Iterator[tuple[bytes, int]]:
    """(body, bytes in the file) of each whole record."""
    with path.open("rb") as file:
        while len(header := file.read(_HEADER_BYTES)) == _HEADER_BYTES:
            size, checksum = int.from_bytes(header[:4], "little"), int.from_bytes(header[4:], "little")
            body = file.read(size)
            if not size or len(body) < size or zlib.crc32(body) != checksum:
                return
            yield body, size + _HEADER_BYTES
