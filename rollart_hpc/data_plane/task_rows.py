"""The data set of a task: a JSONL file whose rows are the tasks of its episodes.

The file may be much larger than memory: one pass finds where each row begins, a row is read when it is needed. Blank
lines are no rows. The file stays open: one that is replaced while a run goes on changes nothing for it.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from rollart_hpc.bus import codec
from rollart_hpc.data_plane.environment_spec import CONFIGURATION
from rollart_hpc.errors import ConfigError, EnvironmentFault


class TaskRows:
    """The rows of one file, by seed.

    Raises:
        ConfigError: it cannot be read, or has no row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begins, self._ends = array("Q"), array("Q")
        self._lines = array("Q")
        try:
            self._file: BinaryIO = path.open("rb")
            position = 0
            for number, line in enumerate(self._file, start=1):
                if line.strip():
                    self._begins.append(position)
                    self._ends.append(position + len(line))
                    self._lines.append(number)
                position += len(line)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read: {error.strerror or error}; give the path of a JSONL file"
            ) from error
        if not self._begins:
            raise ConfigError(f"{path}: has no row; expected one JSON object a line")

    def __len__(self) -> int:
        return len(self._begins)

    def row(self, seed: int) -> dict[str, Any]:
        """The row of an episode.

        Raises:
            EnvironmentFault: configuration: it is no JSON object.
        """
        try:
            return self._read(seed % len(self))
        except ConfigError as error:
            raise EnvironmentFault(CONFIGURATION, str(error)) from error

    def rows(self) -> Iterator[dict[str, Any]]:
        """All of them, in their order.

        Raises:
            ConfigError: one is no JSON object; says its line.
        """
        return (self._read(index) for index in range(len(self)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read(self, index: int) -> dict[str, Any]:
        begin, end = self._begins[index], self._ends[index]
        where = f"{self._path}:{self._lines[index]}"
        try:
            value = json.loads(os.pread(self._file.fileno(), end - begin, begin))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: no JSON: {error}; expected one object a line") from error
        except OSError as error:
            raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: expected a JSON object, got {str(value)[:60]!r}")
        try:
            # JSON can say what no message to a child can: numbers without bound, halves of characters.
            codec.encode(value)
        except (OverflowError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{where}: cannot be given to an environment: {error}; expected whole numbers of at most 64 bits, "
                "whole characters, and few levels"
            ) from error
        return cast("dict[str, Any]", value)
