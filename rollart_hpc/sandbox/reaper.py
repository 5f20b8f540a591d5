"""Runs a command and lets none of its processes outlive it: a program of its own, for sandboxes without a
process namespace that could be ended instead.

Processes whose parent has ended become children of this one (the kernel's child subreaper), whatever session or group
they are in. When the command has ended, by itself or because this process is told to end, all of them are killed.

A command that makes a process namespace of its own (``namespace``) has programs around it that write its files. To end
it, the first process of the namespace is killed; what is around it has a few seconds to write what it holds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WRITE_S = 5.0
_LOOK_S = 0.02


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


def kill_namespace() -> None:
    """Kills the first process of a process namespace below this one, and by it all others there."""
    for pid in descendants():
        if is_first_of_namespace(pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


def is_first_of_namespace(pid: int) -> bool:
    """Whether it is the first process of a process namespace other than ours; False when it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - read many times a second
            numbers = next(line.split()[1:] for line in file if line.startswith(b"NSpid:"))
    except (OSError, StopIteration):
        return False
    return len(numbers) > 1 and numbers[-1] == b"1"


def end_namespace() -> None:
    """Kills what is in the namespace, and after a while what is around it."""
    deadline = time.monotonic() + _WRITE_S
    try:
        while time.monotonic() < deadline:
            kill_namespace()
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_LOOK_S)
    except ChildProcessError:
        return
    kill_all()


def main(parent: int, status: int, *, is_namespace: bool, argv: list[str]) -> None:
    """Runs the command; writes its exit code to the descriptor ``status``.

    Ends with the process ``parent``. In a namespace the command says on its own descriptor 3 that it has begun; before
    that an exit code is not its own and is not written.
    """
    end_all = end_namespace if is_namespace else kill_all

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all()
        os._exit(137)

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, end)
    os.set_inheritable(status, False)
    began, began_end = os.pipe()
    os.set_blocking(began, False)
    actions = [(os.POSIX_SPAWN_DUP2, began_end, 3)] if is_namespace else []
    child = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions, setsigdef=[signal.SIGTERM, signal.SIGPIPE])
    while True:
        pid, ended = os.wait()
        if pid == child:
            break
    end_all()
    if is_namespace and not _has_begun(began):
        return
    code = os.waitstatus_to_exitcode(ended)
    os.write(status, b'{"exit-code": %d}\n' % (code if code >= 0 else 128 - code))


def _has_begun(began: int) -> bool:
    try:
        return bool(os.read(began, 1))
    except BlockingIOError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), is_namespace=sys.argv[3] == "namespace", argv=sys.argv[4:])
