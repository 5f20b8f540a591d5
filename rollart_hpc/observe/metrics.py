"""What a run writes about itself: metrics.jsonl (the record), TensorBoard files and summary.json.

A resumed run takes back the records of steps that it trains again, so that every step is there once.
JSON has no NaN: it is written as null, and `number` reads it back.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.errors import ConfigError
from rollart_hpc.observe.growing_file import GrowingFile, free_space

_log = logging.getLogger(__name__)
_METRICS = "metrics.jsonl"


class MetricsWriter:
    """Appends one record per step to ``metrics.jsonl`` and its numbers to TensorBoard; a full disk costs nothing else.

    Both files have what was written before a kill. TensorBoard's readers drop what an earlier file has of the steps
    from the one on that a later file starts with.
    """

    def __init__(self, run_directory: Path, *, after_step: int) -> None:
        """Opens both for the steps after ``after_step``; later ones of an earlier attempt are taken back."""
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        event: Any = event_pb2
        path = run_directory / _METRICS
        self._file = GrowingFile(path)
        if path.exists():
            self._file.write(_take_back(path, after_step))
        # Readers take the files of a directory in the order of their names.
        events = run_directory / "tensorboard" / f"events.out.tfevents.{time.time_ns()}.{platform.node()}.{os.getpid()}"
        self._events_file = GrowingFile(events)
        self._events: Any = RecordWriter(self._events_file)
        self._add_event(event.Event(wall_time=time.time(), file_version="brain.Event:2"))
        session = event.SessionLog(status=event.SessionLog.START)
        self._add_event(event.Event(wall_time=time.time(), step=after_step + 1, session_log=session))

    def write(self, step: int, record: Mapping[str, Any]) -> None:
        """Writes one step's record and the time; nested mappings become TensorBoard names with slashes."""
        from tensorboard.compat.proto import event_pb2, summary_pb2

        event: Any = event_pb2
        summary: Any = summary_pb2
        self._file.write(msgspec.json.encode({"step": step, "at": time.time(), **record}) + b"\n")
        values = [summary.Summary.Value(tag=tag, simple_value=value) for tag, value in flatten(record).items()]
        self._add_event(event.Event(wall_time=time.time(), step=step, summary=summary.Summary(value=values)))

    def close(self) -> None:
        """Closes both."""
        self._file.close()
        self._events_file.close()

    def _add_event(self, event: Any) -> None:
        self._events.write(event.SerializeToString())


def _take_back(path: Path, after_step: int) -> bytes:
    """Cuts off the records of later steps and a torn end, which needs no room on the disk.

    Returns:
        What has to be written before the next record: the end of the line where it was cut off just before that.
    """
    kept, last = 0, b"\n"
    with path.open("rb+") as file:
        for line in file:
            record = _decode(line)
            if record is None and not line.endswith(b"\n"):
                break
            if record is not None and record["step"] > after_step:
                break
            kept, last = kept + len(line), line
        file.truncate(kept)
    return b"" if last.endswith(b"\n") else b"\n"


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        record = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if isinstance(record.get("step"), int) else None


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a nested mapping under names with slashes."""
    flat: dict[str, float] = {}
    for key, value in record.items():
        name = f"{prefix}/{key}" if prefix else key
        if isinstance(value, Mapping):
            flat.update(flatten(value, name))  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, (int, float)):
            flat[name] = float(value)
    return flat


def read_metrics(run_directory: Path) -> list[dict[str, Any]]:
    """The records of a run, the last one of each step, in order; torn lines are left out."""
    path = run_directory / _METRICS
    records: dict[int, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_bytes().splitlines():
            record = _decode(line)
            if record is not None:
                records[record["step"]] = record
    return [records[step] for step in sorted(records)]


def number(value: float | None) -> float:
    """A number of a record or summary that may have been NaN when it was written."""
    return math.nan if value is None else float(value)


def write_summary(run_directory: Path, summary: Mapping[str, Any]) -> None:
    """Writes summary.json in one move; a disk that does not take it leaves the one before, and is told in the log."""
    temporary = run_directory / ".summary.json"
    encoded = msgspec.json.format(msgspec.json.encode(summary))
    try:
        temporary.write_bytes(encoded)
        temporary.replace(run_directory / "summary.json")
    except OSError as error:
        _log.warning(
            "%s CANNOT BE WRITTEN: %s; %s; it is as it was before",
            run_directory / "summary.json", error.strerror, free_space(run_directory),
        )  # fmt: skip
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_summary(run_directory: Path) -> dict[str, Any]:
    """summary.json; empty when there is none yet.

    Raises:
        ConfigError: the file is something else.
    """
    path = run_directory / "summary.json"
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not the summary of a run: {error}") from error
