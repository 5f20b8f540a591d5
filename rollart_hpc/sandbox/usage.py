"""What processes take, read from a proc file system: that of a sandbox has its processes and no others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over processes."""

    num_tasks: int = 0
    """Processes and threads; those that ended and were not waited for included."""
    resident_bytes: int = 0
    """Pages that processes share are counted for each."""


def processes(proc: str) -> list[str]:
    """Their directories in a proc file system."""
    return [f"{proc}/{name}" for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 - often


def usage(directories: Iterable[str]) -> Usage:
    """What those of them take that are still there."""
    num_tasks = resident = 0
    for directory in directories:
        try:
            with open(f"{directory}/stat", "rb") as file:  # noqa: PTH123 - read many times a second
                # The name, in parentheses, may hold anything.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        num_tasks += int(fields[17])
        resident += int(fields[21])
    return Usage(num_tasks, resident * _PAGE)


def proportional_bytes(directories: Iterable[str]) -> int:
    """Their memory with each shared page counted once; slower by far, asked for where the quick sum is too high."""
    total = 0
    for directory in directories:
        try:
            with open(f"{directory}/smaps_rollup", "rb") as file:  # noqa: PTH123
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:"))
        except OSError:
            continue
    return total


def only_child(pid: int) -> int | None:
    """The child of a process with one thread and one child."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:  # noqa: PTH123
            children = file.read().split()
    except FileNotFoundError:
        return _searched_child(pid)
    except OSError:
        return None
    return int(children[0]) if children else None


def _searched_child(pid: int) -> int | None:
    """As `only_child` where the kernel lists no children."""
    import psutil

    try:
        children = psutil.Process(pid).children()
    except psutil.Error:
        return None
    return children[0].pid if children else None
