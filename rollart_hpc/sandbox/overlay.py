"""How a root is overlaid with a layer on a tmpfs.

The kernel's own overlay marks in an extended attribute that a directory hides the one below. Kernels before 6.6 have no
attributes of users on tmpfs: there a directory of the root that was removed could not be made again. fuse-overlayfs,
which podman brings, marks it by a file instead and serves those nodes.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import tempfile
from functools import cache

from rollart_hpc.errors import NoSandboxError


def overlay_command(root: str, layer: str) -> str:
    """The shell command that mounts ``layer/root``: ``root``, with ``layer/upper`` over it.

    Raises:
        NoSandboxError: this node cannot do so.
    """
    upper, work, target = (shlex.quote(f"{layer}/{name}") for name in ("upper", "work", "root"))
    program = overlay_program()
    if program is None:
        # The root by its place, not by its name: in these options a name must not hold commas and colons.
        options = f"lowerdir=.,upperdir={upper},workdir={work},userxattr"
        return f"cd {shlex.quote(root)}; mount -t overlay -o {options} root {target}"
    if set(root) & {":", ",", "\\"}:
        raise NoSandboxError(f"the root {root}: fuse-overlayfs takes no path with a colon, comma or backslash")
    return f"{program} -o lowerdir={shlex.quote(root)},upperdir={upper},workdir={work} {target}"


def overlay_program() -> str | None:
    """What overlays roots on this node: a program, or None for the kernel itself.

    Raises:
        NoSandboxError: nothing does.
    """
    if has_user_attributes():
        return None
    program = shutil.which("fuse-overlayfs")
    if program is None:
        raise NoSandboxError(
            "this node can run sandboxes, but none with a root of its own: that needs a kernel 6.6 or newer, which has "
            "attributes of users on tmpfs, or fuse-overlayfs; install it"
        )
    return program


@cache
def has_user_attributes() -> bool:
    """Whether a tmpfs keeps attributes of users; asked of /dev/shm, which is one."""
    try:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            os.setxattr(file.name, "user.rollart", b"y")
    except OSError as error:
        return error.errno != errno.ENOTSUP
    return True
