"""Daemons that outlive the command that started them: started detached, known again by a record, ended by it.

Invariant: a process is signalled only when its id and its start time are the recorded ones, so a process id that
the kernel gave to someone else is never touched. A command that is asked to end hears it when what it just started is
recorded, not before (`signals_held`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from rollart_hpc.processes import tail

_POLL_S = 0.02
_ENDING = (signal.SIGINT, signal.SIGTERM)


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """One process, as recorded when it was started."""

    name: str
    pid: int
    started: int
    """Clock ticks after the machine's boot, from /proc."""

    @property
    def alive(self) -> bool:
        """Whether this very process runs; one that has ended and is not yet reaped does not."""
        return start_time(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Signals the process; nothing when it has ended."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


@contextmanager
def signals_held() -> Generator[None]:
    """Requests to end (SIGINT, SIGTERM) are acted on at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals interrupt the main thread only
        return
    came: list[int] = []
    # Not blocked: a process that is started would have them blocked, too.
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def start_daemon(
    name: str, argv: Sequence[str], *, output: Path, directory: Path, environment: Mapping[str, str]
) -> tuple[Daemon, subprocess.Popen[bytes]]:
    """Starts ``argv`` in a session of its own; its output replaces the file ``output``.

    Raises:
        OSError: the program cannot run.
    """
    with output.open("wb") as file:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
        )
    # A process that has ended already has no start time; it is recorded as one that never is alive.
    return Daemon(name=name, pid=process.pid, started=start_time(process.pid) or 0), process


def end_daemons(daemons: Iterable[Daemon], grace_s: float) -> list[Daemon]:
    """Ends them side by side: TERM, up to ``grace_s``, KILL. Returns those that had to be killed."""
    ended = list(daemons)
    for daemon in ended:
        daemon.send(signal.SIGTERM)
    killed = _await_end(ended, grace_s)
    for daemon in killed:
        daemon.send(signal.SIGKILL)
    _await_end(killed, grace_s)
    for daemon in ended:
        # The process that started them may be this one, which then has to reap them.
        with suppress(ChildProcessError):
            os.waitpid(daemon.pid, os.WNOHANG)
    return killed


def start_time(pid: int) -> int | None:
    """When a process started, in ticks after boot; None when there is none or it has ended and waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may itself have spaces and parentheses; the fields after it have neither.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def end_of(output: Path) -> str:
    """The last lines of a daemon's output, as the end of an error's text."""
    return f"\n{output} ends:\n{tail(output) or '(it is empty)'}"


def _await_end(daemons: list[Daemon], deadline_s: float) -> list[Daemon]:
    """Those that still run at the deadline."""
    deadline = time.monotonic() + deadline_s
    while (running := [daemon for daemon in daemons if daemon.alive]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return running
