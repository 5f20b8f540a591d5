"""What this machine says about itself: limits of its processes, and which file systems other machines share."""

from __future__ import annotations

import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_SHARED_TYPES = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "wekafs", "panfs", "pvfs2", "orangefs"}
    | {"gfs2", "ocfs2", "cifs", "smb3", "afs", "dvs", "quobyte", "mmfs", "vastnfs", "glusterfs", "juicefs", "daos"}
)
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of a process; None is unlimited."""

    nofile_soft: int | None
    nofile_hard: int | None
    memlock_kb: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mounted file system."""

    point: PurePosixPath
    file_system: str
    source: str

    @property
    def shared(self) -> bool:
        """Its kind is made for several machines; False only means not known to be."""
        return self.file_system.removeprefix("fuse.") in _SHARED_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """This machine, as of one moment."""

    limits: Limits
    mounts: tuple[Mount, ...]

    def mount_of(self, path: Path) -> Mount | None:
        """The file system that ``path`` lies on, or would lie on."""
        covering = [mount for mount in self.mounts if path.is_relative_to(mount.point)]
        deepest = max((len(mount.point.parts) for mount in covering), default=0)
        # Of several mounts on one point, the last one hides the others.
        return next((mount for mount in reversed(covering) if len(mount.point.parts) == deepest), None)


def read_machine() -> MachineFacts:
    """This machine's limits and mounts (Linux)."""
    mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limits = Limits(
        nofile_soft=_limit(soft), nofile_hard=_limit(hard), memlock_kb=_limit(memlock if memlock < 0 else memlock >> 10)
    )
    return MachineFacts(limits=limits, mounts=tuple(parse_mounts(mounts)))


def parse_mounts(text: str) -> Sequence[Mount]:
    """Mounts of ``/proc/self/mountinfo``."""
    mounts: list[Mount] = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if separator and len(fields) > 4 and len(kind) > 1:
            point = PurePosixPath(_OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[4]))
            mounts.append(Mount(point=point, file_system=kind[0], source=kind[1]))
    return mounts


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def existing_parent(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.is_dir())
