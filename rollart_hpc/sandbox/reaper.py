"""Runs a command and lets none of its processes outlive it: a program of its own, for sandboxes without a
process namespace that could be ended instead.

Processes whose parent has ended become children of this one (the kernel's child subreaper), whatever session or group
they are in. When the command has ended, by itself or because this process is told to end, all of them are killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def descendants() -> list[int]:
    """All processes below this one."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - needs to start fast
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(name))
    found = parents.get(os.getpid(), [])
    for pid in found:
        found += parents.get(pid, [])
    return found


def kill_all() -> None:
    """Kills all processes below this one; those that they start meanwhile too."""
    while found := descendants():
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def end(*_: object) -> None:
    """The answer to SIGTERM."""
    kill_all()
    os._exit(137)


def main(parent: int, status: int, failure: int, argv: list[str]) -> None:
    """Runs the command; writes its exit code, unless it is ``failure``, to the descriptor ``status``.

    Ends with the process ``parent``.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, end)
    os.set_inheritable(status, False)
    child = os.posix_spawn(argv[0], argv, os.environ, setsigdef=[signal.SIGTERM, signal.SIGPIPE])
    while True:
        pid, ended = os.wait()
        if pid == child:
            break
    kill_all()
    code = os.waitstatus_to_exitcode(ended)
    if code != failure:
        os.write(status, b'{"exit-code": %d}\n' % (code if code >= 0 else 128 - code))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
