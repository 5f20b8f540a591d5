"""What a run writes about itself: metrics.jsonl (the record), TensorBoard files and summary.json.

Each step is written once; the files are appended to by a resumed run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec


class MetricsWriter:
    """Appends one record per step to ``metrics.jsonl`` and its numbers to TensorBoard."""

    def __init__(self, run_directory: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        run_directory.mkdir(parents=True, exist_ok=True)
        self._file = (run_directory / "metrics.jsonl").open("ab")
        self._events: Any = EventFileWriter(str(run_directory / "tensorboard"))

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
    """The records of a run, in order; a torn last line is left out."""
    path = run_directory / "metrics.jsonl"
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                records.append(msgspec.json.decode(line))
            except msgspec.DecodeError:
                break
    return records


def write_summary(run_directory: Path, summary: Mapping[str, Any]) -> None:
    """Writes summary.json in one move."""
    temporary = run_directory / ".summary.json"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    temporary.replace(run_directory / "summary.json")
