"""The logs of a run: which files there are, their ends, and what is added to them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sized
from pathlib import Path

from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.run_directory import jobs_of
from rollart_hpc.processes import tail
from rollart_hpc.types import Role

_LOOK_EVERY_S = 0.5
_LONGEST_LINE_BYTES = 1 << 20
LEADER = "leader"


def log_files(directory: Path, *, attempt: int | None = None, role: str | None = None) -> dict[str, Path]:
    """Logs by process of one attempt, the newest when None; all, or those of a role or a process.

    The leader's is what its job's batch script printed; a leader on a terminal has none.

    Raises:
        ConfigError: there is no such attempt, or among the logs that there are none of that role or name.
    """
    found = _leader_log(directory) | _process_logs(directory, attempt)
    if role is None or not found:
        return found
    chosen = {name: path for name, path in found.items() if role in (name, _role_of(name))}
    if not chosen:
        known = sorted({_role_of(name) for name in found})
        raise ConfigError(f"no log of {role!r}; there are logs of {', '.join(known)}")
    return chosen


def last_lines(files: dict[str, Path], lines: int) -> Iterator[str]:
    """The ends of the files, each line with its process's name when there are several."""
    for name, path in files.items():
        for line in tail(path, lines).splitlines():
            yield _labelled(name, line, files)


def follow(look: Callable[[], dict[str, Path]], is_over: Callable[[], bool], lines: int) -> Iterator[str]:
    """The ends of the files and then what is added, files that appear later included, until the run is over.

    A file that was there once is read to its end, though ``look`` knows the files of a newer attempt by then.
    """
    files = look()
    # Where the ends end is settled before they are printed: meanwhile the files grow.
    offsets = {path: _end_of_lines(path) for path in files.values()}
    for name, path in files.items():
        for line in tail(path, lines, end=offsets[path]).splitlines():
            yield _labelled(name, line, files)
    names = {path: name for name, path in files.items()}
    while True:
        over = is_over()
        files = _look_again(look)
        names |= {path: name for name, path in files.items()}
        for path, name in names.items():
            for line in _added(path, offsets, torn_too=over):
                yield _labelled(name, line, set(names.values()))
        if over:
            return
        time.sleep(_LOOK_EVERY_S)


def _look_again(look: Callable[[], dict[str, Path]]) -> dict[str, Path]:
    try:
        return look()
    except ConfigError:
        return {}  # A new attempt whose processes of this role have not begun.


def _end_of_lines(path: Path) -> int:
    """The byte behind the last whole line."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _LONGEST_LINE_BYTES)
        file.seek(start)
        return start + file.read(size - start).rfind(b"\n") + 1


def _added(path: Path, offsets: dict[Path, int], *, torn_too: bool) -> list[str]:
    """Lines since the last look; one that is not finished only with ``torn_too``."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(offsets.get(path, 0))
        text = file.read()
    end = len(text) if torn_too else text.rfind(b"\n") + 1
    offsets[path] = offsets.get(path, 0) + end
    return text[:end].decode(errors="replace").splitlines()


def _labelled(name: str, line: str, files: Sized) -> str:
    return line if len(files) == 1 else f"{name} | {line}"


def _leader_log(directory: Path) -> dict[str, Path]:
    jobs = [directory / f"slurm-{job}.out" for job in jobs_of(directory)]
    there = [path for path in jobs if path.exists()]
    return {LEADER: there[-1]} if there else {}


def _process_logs(directory: Path, attempt: int | None) -> dict[str, Path]:
    logs = directory / "attempts" / ("latest" if attempt is None else str(attempt)) / "logs"
    if attempt is not None and not logs.is_dir():
        raise ConfigError(f"{directory} has no attempt {attempt}")
    # The link is resolved, so that a new attempt's files are not taken for old ones that grew.
    return {path.stem: path.resolve() for path in sorted(logs.glob("*.log"))}


def _role_of(name: str) -> str:
    """The role of a member id; of a service its name."""
    role = name.partition("-")[0]
    return role if role in set(Role) else re.sub(r"-\d+$", "", name)
