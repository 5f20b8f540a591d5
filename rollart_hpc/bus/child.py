"""Child processes that run user code and can be killed at any moment.

The parent starts ``python -m module`` with one end of a socket pair and speaks to it in messages
(`rollart_hpc.bus.frames`). Invariants:

- A child lives no longer than its parent: the kernel kills it when the thread that started it ends, so
  children are started from the thread of the event loop. When its socket closes, it ends by itself.
- Signals that are meant for the parent (Slurm and terminals send them to every process) do nothing in a
  child, from its first instruction on; what the user's code starts has the default behaviour again.
- Each child leads a process group, and a kill takes the whole group.
- Whatever user code prints goes to the parent's standard error; the socket carries nothing but messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection
from types import FrameType

from rollart_hpc.bus.frames import Channel
from rollart_hpc.processes import deaf_children

_log = logging.getLogger(__name__)
_PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_KILL_GRACE_S = 5.0


class ChildProcess:
    """The parent's handle of one child; made by `start`, on a running event loop."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        on_messages: Callable[[list[bytes]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._process = process
        self._on_end = on_end
        self._channel = Channel(connection, on_messages, on_end=self.kill)
        self._loop = asyncio.get_running_loop()
        self._exit_fd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._exit_fd, self._reap)
        self._ended = asyncio.Event()

    @classmethod
    def start(
        cls, module: str, *, on_messages: Callable[[list[bytes]], None], on_end: Callable[[], None]
    ) -> ChildProcess:
        """Starts ``python -m module``, whose main calls `enter`.

        Args:
            module: full name of the child's module.
            on_messages: called with messages from the child, in order.
            on_end: called once, when the child is gone and its last messages were handed over.
        """
        ours, theirs = socket.socketpair()
        # Blocked signals stay blocked over fork and exec: none can hit the child before it is ready for them.
        try:
            with deaf_children(_PARENTS_SIGNALS):
                process = subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours, on_messages, on_end)

    @property
    def pid(self) -> int:
        """Process id, and id of its process group."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """The process is gone and reaped."""
        return self._ended.is_set()

    @property
    def exit_text(self) -> str:
        """How the process ended, for people."""
        status = self._process.returncode
        if status is None:
            return "still running"
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def send(self, message: bytes) -> None:
        """Queues one message to the child; lost when the child is gone, which `on_end` tells."""
        self._channel.send(message)

    def kill(self) -> None:
        """Kills the child and what it started; returns at once, `on_end` follows."""
        if not self.has_ended:
            _kill_group(self.pid)
            os.kill(self.pid, signal.SIGKILL)

    async def wait_ended(self) -> None:
        """Returns when the process is gone."""
        await self._ended.wait()

    def _reap(self) -> None:
        self._loop.remove_reader(self._exit_fd)
        os.close(self._exit_fd)
        self._channel.drain()
        self._channel.close()
        # Until it is reaped the process keeps its group's number from being given to others.
        _kill_group(self.pid)
        self._process.wait()
        self._ended.set()
        self._on_end()


async def end_all(children: Collection[ChildProcess], *, grace_s: float) -> None:
    """Waits until the children have ended; kills those that have not within ``grace_s``."""
    waits = [asyncio.ensure_future(child.wait_ended()) for child in children if not child.has_ended]
    if not waits:
        return
    try:
        await asyncio.wait(waits, timeout=grace_s)
    finally:
        for child in children:
            child.kill()
    await asyncio.wait(waits, timeout=_KILL_GRACE_S)
    for wait in waits:
        wait.cancel()
    if left := [child.pid for child in children if not child.has_ended]:
        _log.error("children %s have not ended %g s after SIGKILL and are left to the kernel", left, _KILL_GRACE_S)


def enter() -> socket.socket:
    """First call in a child: ties it to its parent, takes its signals, returns its blocking end of the socket."""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for number in _PARENTS_SIGNALS:
        # A handler, not SIG_IGN: programs that the user's code executes must not inherit deafness.
        signal.signal(number, _ignore)
    os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_restore_signals)
    _unblock_signals()
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def _ignore(number: int, stack: FrameType | None) -> None:
    pass


def _block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _PARENTS_SIGNALS)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PARENTS_SIGNALS)


def _restore_signals() -> None:
    for number in _PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _unblock_signals()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
