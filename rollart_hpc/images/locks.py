"""Locks between the processes of one node.

All are flock: the kernel frees them with their holder, whatever ended it, so nothing is ever left locked. They lie on
the node's own disk alone; on a shared file system flock may do nothing at all. Every one is on an open file of its own,
so threads of one process exclude each other as processes do.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rollart_hpc.errors import ImageError
from rollart_hpc.images.deadline import Deadline, jittered_s

_FIRST_WAIT_S = 0.002
_LONGEST_WAIT_S = 0.1


@contextmanager
def exclusive(path: Path, deadline: Deadline, what: str) -> Generator[None]:
    """Holds the lock file at ``path``, which is made; waits for whoever holds it.

    Raises:
        ImageError: the deadline passed first; retryable.
    """
    tries = 0
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # The kernel has no flock with a deadline: it is tried, with pauses that stay short beside a pull.
            if _take(fd, fcntl.LOCK_EX) and _is_at(fd, path):
                try:
                    yield
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)
                return
        finally:
            os.close(fd)
        if not deadline.sleep(jittered_s(tries, first_s=_FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)):
            raise ImageError(
                f"{what}: another process of this node was at it for {deadline.timeout_s:g} s; "
                "raise images.pull_timeout_s, or look what that one waits for",
                retryable=True,
            )
        tries += 1


@contextmanager
def in_use(path: Path) -> Generator[bool]:
    """Keeps what is at ``path`` from being collected; says whether it is there.

    The lock is on the thing itself: systemd-tmpfiles, too, leaves alone what somebody has locked.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        # It is held exclusively only by a collector that is about to remove it.
        there = _take(fd, fcntl.LOCK_SH) and _is_at(fd, path)
        try:
            yield there
        finally:
            # A fork may share the open file and outlive us: closing it would not free the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


@contextmanager
def unused(path: Path) -> Generator[bool]:
    """Keeps others from beginning to use what is at ``path``; says whether nobody uses it and it is there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _take(fd, fcntl.LOCK_EX) and _is_at(fd, path)
    finally:
        os.close(fd)


def _take(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Whether the open file is the one that has the name now; it may have been removed before it was locked."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(fd)
    return (named.st_ino, named.st_dev) == (own.st_ino, own.st_dev)
