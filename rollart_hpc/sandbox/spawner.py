"""A thread that starts the processes of sandboxes.

- A parent-death signal follows the thread that started a child, not its process: this thread lives as long as the
  process, whichever thread opened the sandbox.
- A child starts with no signal blocked or ignored, whatever the worker does with its own, and with no descriptor but
  those that it is given.
- A forked copy of this process has no such thread, and makes its own.
"""

from __future__ import annotations

import fcntl
import os
import queue
import select
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from rollart_hpc.sandbox.per_process import PerProcess

T = TypeVar("T")
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_LOW = 10
_SPARE = 256
"""Descriptors above the highest known one that are closed too: other threads open some at any time."""


class Process:
    """A child process, known by a descriptor: its id cannot become another process's meanwhile."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.pidfd_open(pid)
        """Readable when it has ended; closed by a `wait` that sees it."""
        self._is_over = False
        self._lock = threading.Lock()

    def wait(self, timeout_s: float) -> bool:
        """Waits for its end, and takes note of it; says whether it came."""
        with self._lock:
            if not self._is_over:
                waiting = select.poll()
                waiting.register(self.fd, select.POLLIN)
                if not waiting.poll(1e3 * timeout_s):
                    return False
                os.waitpid(self.pid, 0)
                os.close(self.fd)
                self._is_over = True
            return True


class Spawner:
    """Runs calls in its thread, in the order in which they come."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="sandbox-spawner", daemon=True).start()

    def call(self, function: Callable[[], T]) -> T:
        """Calls the function in the thread."""
        future: Future[T] = Future()
        self._calls.put((future, function))
        return future.result()

    def start(
        self, argv: Sequence[str | bytes], *, descriptors: Sequence[int], environment: Mapping[str, str]
    ) -> Process:
        """Starts a process in a session of its own.

        Args:
            argv: the program, by its absolute path, and its arguments.
            descriptors: of this process; there they are 0, 1, 2, ...
            environment: whole.

        Raises:
            OSError: the program cannot run, or the kernel has no room for another process.
        """
        return self.call(lambda: _start(argv, descriptors, environment))

    def _run(self) -> None:
        while True:
            future, function = self._calls.get()
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            del future, function


def _start(argv: Sequence[str | bytes], descriptors: Sequence[int], environment: Mapping[str, str]) -> Process:
    # Out of the way of the low numbers that they are copied to.
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOW + len(descriptors)) for fd in descriptors]
    try:
        highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(copies)]
        actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in range(len(copies), highest + _SPARE)]
        return Process(
            os.posix_spawn(
                argv[0], list(argv), environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_SIGNALS
            )
        )
    finally:
        for fd in copies:
            os.close(fd)


spawner = PerProcess(Spawner)
"""That of this process."""
