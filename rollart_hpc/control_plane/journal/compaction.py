"""Compaction: what no resume can need any more loses its tokens, so that the journal grows with events only.

Kept whole are pending trajectories, buffered ones among them, and those of batches that may be trained again. Of the
others the record of what happened stays, without token ids, masks, logprobs and texts. Only closed segments are
rewritten, each in one move, so that neither the writer nor a reader notices.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from operator import is_
from pathlib import Path

import msgspec
import numpy as np

from rollart_hpc.control_plane.journal.frames import (
    JOURNAL_DIRECTORY,
    SegmentFrames,
    frame,
    pack,
    segment_path,
    segments_of,
    sync_directory,
    unpack,
)
from rollart_hpc.control_plane.journal.reader import JournalReader
from rollart_hpc.control_plane.journal.records import BatchFormed, Ended, Finished, HandedIn, Record
from rollart_hpc.types import Outcome

_log = logging.getLogger(__name__)
_COMPACTED = "compacted"
"""Holds the number of the segment up to which none has tokens left: what is before it is not read again."""
_UNFINISHED = ".compacting"


def compact(run_directory: Path, *, before_step: int) -> int:
    """Takes the tokens off all trajectories that were trained in a batch before ``before_step`` or ended otherwise.

    May run in a thread beside the writer; one compaction at a time. A segment that cannot be rewritten (full disk)
    stays as it is, with a warning, and the next compaction tries again.

    Args:
        run_directory: Of the run.
        before_step: Batches of this step and later ones are kept whole: the step of the oldest checkpoint that a
            resume may choose.

    Returns:
        Bytes that the segments have become smaller by.
    """
    directory = run_directory / JOURNAL_DIRECTORY
    done = _read_compacted(directory)
    num_closed = len(segments_of(directory)) - 1
    if num_closed <= done:
        return 0
    reader = JournalReader(run_directory, after_segment=done)
    holders, unneeded = _survey(reader, before_step)
    if reader.damage is not None and reader.damage.later:
        _log.error("journal: not compacted: %s", reader.damage)
        return 0
    freed = 0
    try:
        for number in range(done + 1, num_closed + 1):
            if holders[number] & unneeded:
                freed += _rewrite(segment_path(directory, number), unneeded)
            if number == done + 1 and holders[number] <= unneeded:
                done = number
        _write_compacted(directory, done)
    except OSError as error:
        sweep_unfinished(directory)
        _log.warning(
            "journal: not compacted: %s: %s; nothing is lost, but it stays larger: make room there",
            error.filename or directory,
            error.strerror,
        )
    return freed


def sweep_unfinished(directory: Path) -> None:
    """Deletes what an interrupted compaction left."""
    for path in directory.glob(f"*{_UNFINISHED}"):
        path.unlink(missing_ok=True)


def forget_compacted(directory: Path) -> None:
    """For when segments get numbers again that others had."""
    (directory / _COMPACTED).unlink(missing_ok=True)


def _survey(reader: JournalReader, before_step: int) -> tuple[dict[int, set[str]], set[str]]:
    """Trajectories that have tokens in each segment, and those of all that no resume needs."""
    holders: defaultdict[int, set[str]] = defaultdict(set)
    step_of: dict[str, int] = {}
    unneeded: set[str] = set()
    for number, body in reader.frames():
        for record in unpack(body):
            match record:
                case BatchFormed():
                    step_of.update(dict.fromkeys(record.trajectory_ids, record.step))
                case Ended():
                    step = step_of.pop(record.trajectory_id, before_step)
                    if record.outcome is not Outcome.TRAINED or step < before_step:
                        unneeded.add(record.trajectory_id)
                case Finished() | HandedIn() if has_tokens(record):
                    holders[number].add(_trajectory_id(record))
                case _:
                    pass
    return holders, unneeded


def has_tokens(record: Finished | HandedIn) -> bool:
    """Whether the tokens are there: a trajectory that failed never had them, a compacted one has not any more."""
    return len(record.trajectory.token_ids if isinstance(record, Finished) else record.log.token_ids) > 0


def _rewrite(path: Path, unneeded: set[str]) -> int:
    size_bytes = path.stat().st_size
    temporary = path.with_name(f".{path.name}{_UNFINISHED}")
    with temporary.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        for body in SegmentFrames(path):
            records = unpack(body)
            kept = [_without_tokens(record, unneeded) for record in records]
            file.write(frame(body) if all(map(is_, kept, records)) else pack(kept))
        file.flush()
        os.fsync(file.fileno())
        size_bytes -= file.tell()
    temporary.replace(path)
    sync_directory(path.parent)
    return size_bytes


def _without_tokens(record: Record, unneeded: set[str]) -> Record:
    if not isinstance(record, Finished | HandedIn) or _trajectory_id(record) not in unneeded:
        return record
    if isinstance(record, Finished):
        return Finished(
            msgspec.structs.replace(
                record.trajectory,
                token_ids=np.empty(0, np.int32),
                loss_mask=np.empty(0, np.uint8),
                logprobs=np.empty(0, np.float32),
            )
        )
    log = record.log
    return HandedIn(
        msgspec.structs.replace(
            log,
            turns=tuple(msgspec.structs.replace(turn, observation="", action="") for turn in log.turns),
            observation="",
            action=None if log.action is None else "",
            token_ids=b"",
            loss_mask=b"",
            logprobs=b"",
        )
    )


def _trajectory_id(record: Finished | HandedIn) -> str:
    return record.trajectory.trajectory_id if isinstance(record, Finished) else record.log.trajectory_id


def _read_compacted(directory: Path) -> int:
    try:
        return int((directory / _COMPACTED).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _write_compacted(directory: Path, number: int) -> None:
    temporary = directory / f".{_COMPACTED}{_UNFINISHED}"
    temporary.write_text(f"{number}\n")
    temporary.replace(directory / _COMPACTED)
