"""Reading the journal: all records in order, up to the first that cannot be read.

The writer may be at work meanwhile: what is read is then a prefix of what happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.control_plane.journal.frames import (
    JOURNAL_DIRECTORY,
    SegmentFrames,
    segment_path,
    segments_of,
    unpack,
)
from rollart_hpc.control_plane.journal.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Where the journal stops being readable."""

    segment: Path
    """Cannot be read to its end, or is missing."""
    offset: int
    """Bytes of it that can be read."""
    size_bytes: int
    """Of it that cannot."""
    later: tuple[Path, ...]
    """Segments behind it: what they say builds upon what is lost."""
    is_torn: bool
    """It is only what an interrupted write leaves at the journal's end: nothing that was whole is lost."""

    def __str__(self) -> str:
        what = "is missing"
        if self.size_bytes:
            what = f"cannot be read from byte {self.offset} on ({self.size_bytes} bytes)"
        later = f", and {len(self.later)} later segments build upon it" if self.later else ""
        return f"{self.segment} {what}{later}"


class JournalReader:
    """Iterates over the records of a run's journal; of a run without one there are none."""

    def __init__(self, run_directory: Path, *, after_segment: int = 0) -> None:
        """Begins behind the segment of that number."""
        self._directory = run_directory / JOURNAL_DIRECTORY
        self._after = after_segment
        self.damage: Damage | None = None
        """What ended the reading early; known when the iteration has ended."""

    def __iter__(self) -> Iterator[Record]:
        for _, body in self.frames():
            yield from unpack(body)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """(number of the segment, body) of each whole frame."""
        segments = segments_of(self._directory)[self._after :]
        for position, path in enumerate(segments):
            number = self._after + position + 1
            expected = segment_path(self._directory, number)
            if path != expected:
                self.damage = Damage(
                    segment=expected, offset=0, size_bytes=0, later=tuple(segments[position:]), is_torn=False
                )
                return
            segment = SegmentFrames(path)
            for body in segment:
                yield number, body
            if segment.unread_bytes:
                later = tuple(segments[position + 1 :])
                self.damage = Damage(
                    segment=path,
                    offset=segment.whole_bytes,
                    size_bytes=segment.unread_bytes,
                    later=later,
                    is_torn=segment.is_torn and not later,
                )
                return


def read_journal(run_directory: Path) -> Iterator[Record]:
    """The records up to the first that is torn or damaged; none when there is no journal."""
    return iter(JournalReader(run_directory))


def has_journal(run_directory: Path) -> bool:
    """Whether anything was ever written into the run's journal."""
    return any(path.stat().st_size for path in segments_of(run_directory / JOURNAL_DIRECTORY))
