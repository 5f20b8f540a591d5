"""Processes that we start and therefore end: one class, used for services and workers alike.

Invariants: a process started here dies with the thread that started it (parent-death signal), lives in a
process group of its own, and is ended by its own process id and group, never by a name. Stopping is bounded:
TERM, a grace period, KILL.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Asks the kernel to signal this process when the thread that started it ends (Linux)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number)


def enter_own_group() -> None:
    """Runs in a child between fork and exec: own process group, default signals, parent-death signal."""
    os.setpgid(0, 0)
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def compute_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: one OMP thread per process, no hub access, no inherited bytecode ban."""
    environment = dict(base)
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("HF_HUB_OFFLINE", "1")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


class ManagedProcess:
    """One child process with a log file, a watched exit and a bounded stop."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(
        cls, name: str, argv: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> ManagedProcess:
        """Starts ``argv`` with stdout and stderr appended to ``log``.

        Raises:
            OSError: the program does not exist or cannot run.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                preexec_fn=enter_own_group,
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Process id; also the id of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that killed it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Waits for the exit; the owner bounds it."""
        return await self._process.wait()

    def send(self, signal_number: int) -> None:
        """Signals the process alone; nothing when it has ended."""
        if self.exit_code is None:
            self._process.send_signal(signal_number)

    async def stop(self, grace_s: float = 5.0) -> int:
        """Ends the process and what it left in its group. Returns the exit code."""
        self.send(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            self._signal_group(signal.SIGKILL)
            code = await self._process.wait()
        self._signal_group(signal.SIGKILL)
        return code

    def _signal_group(self, signal_number: int) -> None:
        try:
            os.killpg(self.pid, signal_number)
        except ProcessLookupError:
            return

    def tail(self, lines: int = 12) -> str:
        """The last lines of the log, for an error message."""
        return tail(self.log, lines)


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log file; empty when there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def python_module(module: str, *arguments: str) -> list[str]:
    """The argument vector that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
