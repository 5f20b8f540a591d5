"""What a run writes about itself: metrics.jsonl (the record), TensorBoard files and summary.json.

A resumed run takes back the records of steps that it trains again, so that every step is there once.
JSON has no NaN: it is written as null, and `number` reads it back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

_METRICS = "metrics.jsonl"


class MetricsWriter:
    """Appends one record per step to ``metrics.jsonl`` and its numbers to TensorBoard."""

    def __init__(self, run_directory: Path, *, after_step: int) -> None:
        """Opens both for the steps after ``after_step``; later ones of an earlier attempt are taken back."""
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        run_directory.mkdir(parents=True, exist_ok=True)
        path = run_directory / _METRICS
        kept = [record for record in read_metrics(run_directory) if record["step"] <= after_step]
        temporary = run_directory / ".metrics.jsonl"
        temporary.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in kept))
        temporary.replace(path)
        self._file = path.open("ab")
        self._events: Any = EventFileWriter(str(run_directory / "tensorboard"))
        event: Any = event_pb2
        session = event.SessionLog(status=event.SessionLog.START)
        self._events.add_event(event.Event(wall_time=time.time(), step=after_step + 1, session_log=session))

    def write(self, step: int, record: Mapping[str, Any]) -> None:
        """Writes one step's record; nested mappings become TensorBoard names with slashes."""
        from tensorboard.compat.proto import event_pb2, summary_pb2

        event: Any = event_pb2
        summary: Any = summary_pb2
        self._file.write(msgspec.json.encode({"step": step, **record}) + b"\n")
        self._file.flush()
        values = [summary.Summary.Value(tag=tag, simple_value=value) for tag, value in flatten(record).items()]
        self._events.add_event(event.Event(wall_time=time.time(), step=step, summary=summary.Summary(value=values)))

    def close(self) -> None:
        """Flushes and closes both."""
        self._file.close()
        self._events.close()


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
            try:
                record = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError:
                continue
            records[record["step"]] = record
    return [records[step] for step in sorted(records)]


def number(value: float | None) -> float:
    """A number of a record or summary that may have been NaN when it was written."""
    return math.nan if value is None else float(value)


def write_summary(run_directory: Path, summary: Mapping[str, Any]) -> None:
    """Writes summary.json in one move."""
    temporary = run_directory / ".summary.json"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    temporary.replace(run_directory / "summary.json")
