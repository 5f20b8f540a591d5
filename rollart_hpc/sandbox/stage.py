"""Where this process is real root: the user that sandboxes run as, and what of the file system that user can reach.

Root's identity keeps rights on a host that no namespace takes away (it owns the files below /proc/sys), and no limit
of processes holds it. So everything that belongs to a sandbox starts as an ordinary user, with an id that nobody has.
That user cannot pass through a closed directory (/root), and cannot read or change what root unpacked for itself. For
this there is a spawner whose thread has a mount namespace of its own. There the directories that sandboxes need are
mounted on an otherwise empty /tmp, read-only and, where the kernel can do so, with root's files shown as that user's.

Nothing of this is seen outside the thread and its children, and it is gone with them.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from pathlib import Path

from rollart_hpc.sandbox.per_process import PerProcess
from rollart_hpc.sandbox.spawner import Spawner

USER_ID = 1_900_000_001
"""In a range that neither distributions nor container engines hand out."""
PLACE = "/tmp"
"""Hidden below a mount of the thread's own."""

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 1, 2, 4, 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 1, 2, 4, 0x00100000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_libc = ctypes.CDLL(None, use_errno=True)


def is_real_root() -> bool:
    """Whether this process is root on the host: not an ordinary user, and not root of a user namespace alone."""
    if os.geteuid() != 0:
        return False
    inside, outside, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    return (inside, outside) == (0, 0) and count > 1


class Stage:
    """A spawner whose thread has a mount namespace of its own."""

    def __init__(self) -> None:
        """Enters it.

        Raises:
            OSError: this root may not mount, as in most containers.
        """
        self.spawner = Spawner()
        self._numbers = itertools.count()
        self._mapping = _identity_mapping()
        self.spawner.call(_enter)

    def show(self, path: Path) -> str:
        """Mounts a directory; returns where.

        Raises:
            OSError: there is no such directory, or the kernel cannot mount it.
        """
        tree = _checked(
            _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE)
        )
        try:
            try:
                _set_attributes(tree, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV | _ATTR_IDMAP, self._mapping)
            except OSError:
                # An older kernel, or a file system that cannot: what others may not read stays unreadable.
                _set_attributes(tree, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0)
            place = f"{PLACE}/{next(self._numbers)}"
            self.spawner.call(lambda: _attach(tree, place))
        finally:
            os.close(tree)
        return place

    def hide(self, place: str) -> None:
        """Takes a mount away again; those who use it keep it."""
        self.spawner.call(lambda: _detach(place))


def _enter() -> None:
    _checked(_libc.unshare(_CLONE_NEWNS))
    _checked(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _checked(_libc.mount(b"stage", PLACE.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=0755,size=1m"))
    # Every sandbox mounts its layer here, in its own namespace.
    Path(PLACE, "layer").mkdir()


def _attach(tree: int, place: str) -> None:
    Path(place).mkdir()
    _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, place.encode(), _MOVE_MOUNT_F_EMPTY_PATH))


def _detach(place: str) -> None:
    _checked(_libc.umount2(place.encode(), _MNT_DETACH))
    Path(place).rmdir()


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def _set_attributes(tree: int, attributes: int, mapping: int) -> None:
    record = _Attributes(attributes, 0, _MS_PRIVATE, mapping)
    _checked(
        _libc.syscall(
            _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, ctypes.byref(record), ctypes.sizeof(record)
        )
    )


def _identity_mapping() -> int:
    """A descriptor of a user namespace that shows root's files as `USER_ID`'s, and all others' as theirs."""
    with subprocess.Popen(
        ["unshare", "--user", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"}
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b".")
        holder.stdin.flush()
        holder.stdout.read(1)
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{kind}").write_text(f"0 {USER_ID} 1\n1 1 {USER_ID - 1}\n")
        fd = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        holder.stdin.close()
    return fd


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _own_stage() -> Stage | None:
    return Stage() if is_real_root() else None


stage = PerProcess(_own_stage)
"""That of this process; None where it is no real root, and needs none. OSError where this root may not mount."""
