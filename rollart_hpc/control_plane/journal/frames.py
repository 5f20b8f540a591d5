"""How the journal lies on the disk: ``RUN/journal/000001.bin``, ``000002.bin``, ..., each a sequence of frames.

A frame is the length and the CRC-32 of its body, four bytes each, little-endian, and the body: the records of one
event. Only the last segment grows; the numbers have no gap.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.control_plane.journal.records import Record
from rollart_hpc.errors import JournalError

JOURNAL_DIRECTORY = "journal"
_HEADER_BYTES = 8
_BUFFER_BYTES = 1 << 20


class _Body(msgspec.Struct, frozen=True, array_like=True):
    records: list[Record]


def segment_path(directory: Path, number: int) -> Path:
    """Where segment ``number`` lies, counted from 1."""
    return directory / f"{number:06d}.bin"


def segments_of(directory: Path) -> list[Path]:
    """All segments in order of their numbers."""
    found = [path for path in directory.glob("*.bin") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


def pack(records: Sequence[Record]) -> bytes:
    """One frame of these records."""
    return frame(codec.encode(_Body(list(records))))


def unpack(body: bytes) -> list[Record]:
    """The records of a frame's body; their arrays are views of it.

    Raises:
        JournalError: the body is whole, but these are no records that this version knows.
    """
    try:
        return codec.decode(body, _Body).records
    except msgspec.DecodeError as error:
        raise JournalError(
            f"a whole record of the journal cannot be understood ({error}): it was written by another version of "
            "rollart-hpc; go on with that version"
        ) from error


def frame(body: bytes) -> bytes:
    """A body with its header."""
    return len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


class SegmentFrames:
    """The bodies of one segment's frames, up to the first that is torn or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole_bytes = 0
        """Of the frames read so far."""
        self.unread_bytes = 0
        """What follows them and is no whole frame; known when the iteration has ended."""
        self.is_torn = False
        """Whether that is what an interrupted write leaves, and not something that was whole once."""

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb", buffering=_BUFFER_BYTES) as file:
            size = 0
            while header := file.read(_HEADER_BYTES):
                length = int.from_bytes(header[:4], "little")
                end = self.whole_bytes + _HEADER_BYTES + length
                if end > size:
                    size = os.fstat(file.fileno()).st_size
                body = file.read(length) if end <= size else b""
                if not length or len(body) < length or zlib.crc32(body) != int.from_bytes(header[4:], "little"):
                    self.unread_bytes = size - self.whole_bytes
                    self.is_torn = end >= size or not (any(header) or _any_byte(file))
                    return
                yield body
                self.whole_bytes = end


def _any_byte(file: BinaryIO) -> bool:
    """Whether a byte that is not zero follows: a crash of the system leaves zeros where data was to be."""
    return any(any(chunk) for chunk in iter(lambda: file.read(_BUFFER_BYTES), b""))


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
