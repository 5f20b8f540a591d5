"""Files of one JSON object a line that only grow. A torn line (full disk, killed writer) costs itself alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def append_record(path: Path, record: msgspec.Struct) -> None:
    """Adds a line, in one write."""
    with path.open("ab+") as file:
        begin = b""
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            begin = b"" if file.read(1) == b"\n" else b"\n"
        file.write(begin + msgspec.json.encode(record) + b"\n")


def read_records(path: Path, kind: type[T]) -> list[T]:
    """The records in order; lines that are none are left out."""
    records: list[T] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            records.append(msgspec.json.decode(line, type=kind))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return records
