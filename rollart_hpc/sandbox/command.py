"""One command in an enclosure: its descriptors, its deadline and its bounds.

Waits for: output, at its pace, room in its standard input, its end, the deadline. Ended by: itself, the deadline, the
watcher.
It is over when its process is: then nothing that it started is left (`Enclosure.start`).
"""

from __future__ import annotations

import errno
import json
import os
import select
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox.enclosure import Enclosure
from rollart_hpc.sandbox.output import HeadAndTail, Pace
from rollart_hpc.sandbox.sandbox import Ending
from rollart_hpc.sandbox.spawner import Process
from rollart_hpc.sandbox.usage import proportional_bytes, usage
from rollart_hpc.sandbox.watcher import watcher

_KILL_AGAIN_S = 0.02
_AHEAD_S = 0.05
"""How long output that comes too fast is not looked at."""
_KILL_S = 10.0
_KILLED = 137
"""As a shell says it of SIGKILL."""
_NOT_FOUND = 127
"""As a shell says it of a program that is not there."""
_CHUNK = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one command."""

    timeout_s: float
    memory_bytes: int
    num_processes: int
    output_bytes: int


class TooLongError(Exception):
    """The command and its environment are longer than the kernel takes."""


class Command:
    """Runs once."""

    def __init__(self, enclosure: Enclosure, bounds: Bounds, *, is_first: bool) -> None:
        """Starts nothing yet.

        Args:
            enclosure: where it runs.
            bounds: what ends it.
            is_first: no command has run there; so a root without a shell is not the doing of one.
        """
        self._enclosure, self._bounds, self._is_first = enclosure, bounds, is_first
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._began_full = False
        self._pace = Pace()
        self.output = HeadAndTail(bounds.output_bytes)
        self.ending: Ending = "exit"
        self.exit_code = 0

    def run(self, argv: Sequence[bytes], environment: Mapping[str, str], stdin: bytes) -> None:
        """Runs it to its end; then `output`, `ending` and `exit_code` are set.

        Raises:
            TooLongError: nothing was started.
            SandboxError: it could not be started, or did not end as a command does.
        """
        self._began_full = self._enclosure.is_full()
        output, output_end = os.pipe()
        status, status_end = os.pipe()
        source, source_end = _source(stdin)
        try:
            try:
                self._process = self._enclosure.start(
                    argv, environment=environment, stdin=source, output=output_end, status=status_end
                )
            except OSError as error:
                if error.errno == errno.E2BIG:
                    raise TooLongError from None
                raise SandboxError(f"a command cannot be started on this node: {error}") from error
            finally:
                for fd in (output_end, status_end, source):
                    os.close(fd)
            watcher().add(self)
            try:
                sink, source_end = source_end, -1  # closed there
                self._attend(self._process, output, sink, stdin)
            finally:
                watcher().remove(self)
                with self._lock:
                    process, self._process = self._process, None
                if not process.wait(0):
                    # This thread was interrupted, or the command cannot be killed.
                    self._enclosure.kill(process)
                    process.wait(_KILL_S)
            self._conclude(_exit_code(os.read(status, _CHUNK)))
        finally:
            for fd in (output, status, source_end):
                if fd >= 0:
                    os.close(fd)

    def check(self) -> None:
        """Ends it when it has passed a bound."""
        with self._lock:
            process = self._process
            if process is None:
                return
            if self.ending == "exit":
                try:
                    passed = self._passed(process)
                except OSError:
                    return  # It has just ended, or has not begun.
                if passed is None:
                    return
                self.ending = passed
            self._enclosure.kill(process)

    def _passed(self, process: Process) -> Ending | None:
        processes = self._enclosure.processes(process)
        taken = usage(processes)
        if taken.num_tasks > self._bounds.num_processes:
            return "processes"
        bound = self._bounds.memory_bytes
        if taken.resident_bytes > bound and proportional_bytes(processes) > bound:
            return "memory"
        return "disk" if self._has_filled() else None

    def _has_filled(self) -> bool:
        """Whether this command took the last room: one that begins without any may make some."""
        is_full = self._enclosure.is_full()
        self._began_full = self._began_full and is_full
        return is_full and not self._began_full

    def _attend(self, process: Process, output: int, source: int, stdin: bytes) -> None:
        """Moves its input and output until it ends, and sees to it that it does; closes ``source``."""
        waiting = select.poll()
        waiting.register(process.fd, select.POLLIN)
        waiting.register(output, select.POLLIN)
        os.set_blocking(output, False)
        output_is_open = True
        rest = memoryview(stdin)
        if source >= 0:
            os.set_blocking(source, False)
            waiting.register(source, select.POLLOUT)
        deadline = time.monotonic() + self._bounds.timeout_s
        try:
            while True:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    self._end(process, "timeout", late_s=-left_s)
                wait_s = left_s if left_s > 0 else _KILL_AGAIN_S
                if output_is_open:
                    is_ahead = self._pace.is_ahead()
                    waiting.modify(output, 0 if is_ahead else select.POLLIN)
                    wait_s = min(wait_s, _AHEAD_S) if is_ahead else wait_s
                ready = dict(waiting.poll(1e3 * wait_s))
                if source in ready:
                    rest = _write(source, rest)
                    if not rest:
                        waiting.unregister(source)
                        os.close(source)
                        source = -1
                if output in ready and not self._read(output):
                    waiting.unregister(output)
                    output_is_open = False
                if process.fd in ready:
                    while self._read(output):
                        pass
                    return
        finally:
            if source >= 0:
                os.close(source)

    def _read(self, output: int) -> bool:
        try:
            data = os.read(output, _CHUNK)
        except BlockingIOError:
            return False
        self.output.add(data)
        self._pace.take(len(data))
        return bool(data)

    def _end(self, process: Process, ending: Ending, *, late_s: float) -> None:
        with self._lock:
            if self.ending == "exit":
                self.ending = ending
            self._enclosure.kill(process)
        if late_s > _KILL_S:
            self._enclosure.close()
            raise SandboxError(f"a command did not end {_KILL_S:g} s after it was killed; its sandbox was closed")

    def _conclude(self, exit_code: int | None) -> None:
        if self.ending == "exit" and exit_code and self._has_filled():
            self.ending = "disk"
        if self.ending != "exit":
            self.exit_code = exit_code or _KILLED
        elif exit_code is None and self._is_root_ruined():
            self.exit_code = _NOT_FOUND
        elif exit_code is None:
            raise SandboxError(f"a command was ended by something outside its sandbox: {self.output.text()[-500:]!r}")
        else:
            self.exit_code = exit_code

    def _is_root_ruined(self) -> bool:
        """Whether no command can begin any more, by the doing of an earlier one."""
        return not self._is_first and self.output.head().startswith(self._enclosure.unusable)


def _source(stdin: bytes) -> tuple[int, int]:
    """Both ends of a standard input; the second is -1 where nothing is to be written."""
    return os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)


def _write(source: int, rest: memoryview) -> memoryview:
    try:
        return rest[os.write(source, rest[:_CHUNK]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]


def _exit_code(status: bytes) -> int | None:
    for line in status.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "exit-code" in record:
            return int(record["exit-code"])
    return None
