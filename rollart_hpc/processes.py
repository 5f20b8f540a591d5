"""Processes that we start and therefore end: one class, used for services and workers alike.

Invariants: a process started here dies with the thread that started it (parent-death signal), lives in a
process group of its own, and is ended by its own process id and group, never by a name. Stopping is bounded:
asked to stop, a grace period, killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
_KILL_GRACE_S = 10.0
_TAIL_BYTES = 16384
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


@contextmanager
def deaf_children(numbers: Iterable[int]) -> Generator[None]:
    """Processes that this thread starts in the block inherit that these signals are blocked.

    Slurm and terminals signal every process; one that others own must not end or act of it.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, log: Path, *, stop_signal: int, kill_signal: int
    ) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._stop_signal, self._kill_signal = stop_signal, kill_signal
        self.is_killed = False
        """We killed it: its exit code says nothing about itself."""

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        stop_signal: int = signal.SIGTERM,
        kill_signal: int = signal.SIGKILL,
    ) -> ManagedProcess:
        """Starts ``argv`` with stdout and stderr appended to ``log``.

        Args:
            name: for messages.
            argv: the program and its arguments.
            log: gets its output.
            environment: whole.
            stop_signal: asks it for an orderly end.
            kill_signal: ends it, and what it stands for, at once.

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
        return cls(name, process, log, stop_signal=stop_signal, kill_signal=kill_signal)

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

    def request_stop(self) -> None:
        """Asks for an orderly end; nothing when it has ended."""
        self._send(self._stop_signal)

    def kill(self) -> None:
        """Ends it at once; nothing when it has ended."""
        self.is_killed = self.is_killed or self.exit_code is None
        self._send(self._kill_signal)

    def send(self, signal_number: int) -> None:
        """Signals the process; where it only stands for another one, KILL and its stop signal reach that one."""
        if signal_number == signal.SIGKILL:
            self.kill()
        else:
            self._send(signal_number)

    async def stop(self, grace_s: float = 5.0) -> int:
        """Ends the process and what it left in its group, within the grace and 10 s. Returns the exit code.

        Where it stands for another process that does not let it go, it takes 10 s more.
        """
        self.request_stop()
        return await self.end(grace_s)

    async def end(self, grace_s: float) -> int:
        """As `stop`, of a process that was told to end in another way."""
        if not await self._ended_within(grace_s):
            self.kill()
            await self._ended_within(_KILL_GRACE_S)
        self._signal_group(signal.SIGKILL)
        if not await self._ended_within(_KILL_GRACE_S):
            _log.error(
                "%s (process %d) has not ended %g s after SIGKILL and is left to the kernel, which holds it: mostly "
                "for a device or a file system that does not answer",
                self.name, self.pid, _KILL_GRACE_S,
            )  # fmt: skip
        return -signal.SIGKILL if self.exit_code is None else self.exit_code

    async def _ended_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _send(self, signal_number: int) -> None:
        if self.exit_code is None:
            self._process.send_signal(signal_number)

    def _signal_group(self, signal_number: int) -> None:
        try:
            os.killpg(self.pid, signal_number)
        except ProcessLookupError:
            return

    def tail(self, lines: int = 12) -> str:
        """The last lines of the log, for an error message."""
        return tail(self.log, lines)


def tail(log: Path, lines: int = 12, *, end: int | None = None) -> str:
    """The last lines of a log file, up to the byte ``end``; empty when there is none."""
    if lines < 1 or not log.exists():
        return ""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        end = size if end is None else min(end, size)
        window, text = 0, b""
        while window < end and text.count(b"\n") <= lines:
            window = 8 * window or _TAIL_BYTES
            file.seek(max(0, end - window))
            text = file.read(min(end, window))
    return "\n".join(text.decode(errors="replace").splitlines()[-lines:])


def ending_signal(code: int) -> signal.Signals | None:
    """The signal that ended a process, from its exit code: negative, or above 128 where a shell or srun reports it."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number)
    except ValueError:
        return None


def describe_exit(code: int) -> str:
    """An exit code in words."""
    number = ending_signal(code)
    return f"exit code {code}" if number is None else f"killed by {number.name}"


def python_module(module: str, *arguments: str) -> list[str]:
    """The argument vector that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
