"""Sandboxes by bubblewrap, as an ordinary user, in two parts.

The **holder** lives as long as the sandbox: a process in user, mount and process namespaces of its own. Its mounts are
a tmpfs of bounded size, the layer, and with a root an overlay of the root below the layer. It reads from a pipe whose
other end this process has. When this process is gone, by whatever way, the pipe ends, the holder with it, and the
kernel kills what is in its namespaces and frees the mounts.

A **command** enters these namespaces and runs bwrap there: the layer as its root, namespaces of its own without a
network and without user namespaces below, no capabilities, no new privileges, a filter of system calls. The shell that
runs the command is the first process of its process namespace, so the kernel kills what it leaves behind before its end
is seen. It is the process to kill, too: bwrap's own processes end after it, never before it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shlex
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart_hpc.config.node import SandboxSection
from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox import host_root
from rollart_hpc.sandbox.lifeline import lifeline
from rollart_hpc.sandbox.node_tools import TOOLS_PATH, bwrap, counts_processes_by_namespace, hard_limit, tool
from rollart_hpc.sandbox.overlay import overlay_command
from rollart_hpc.sandbox.seccomp import call_filter
from rollart_hpc.sandbox.spawner import Process, spawner
from rollart_hpc.sandbox.stage import PLACE, USER_ID, Stage, stage
from rollart_hpc.sandbox.usage import only_child, processes

_READY_S = 30.0
_CLOSE_S = 10.0
_INODE_BYTES = 4096
"""Of the layer for each file that it may hold."""
_OUTER_TASKS = 2
"""unshare and nsenter: they are in the sandbox's user namespace, but not in its process namespace."""
_MAX_FILES = 4096
_SHELLS = ("bin/sh", "usr/bin/sh")
_FIRST_TO_GO = "1000"
_IMAGE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


class BubblewrapEnclosure:
    """A holder and the commands in it."""

    num_own_tasks = 3
    """The holder, bwrap and the shell."""
    unusable: tuple[bytes, ...] = (b"bwrap: execvp /bin/sh: ", b"bwrap: Can't chdir to /: ")

    def __init__(self, root: Path | None, settings: SandboxSection) -> None:
        """Starts the holder.

        Raises:
            SandboxError: the namespaces or the mounts cannot be made; its text has the kernel's words.
        """
        self._settings = settings
        try:
            self._stage = stage()
        except OSError as error:
            raise SandboxError(
                f"root of this container may not mount ({error}): start as an ordinary user, or with CAP_SYS_ADMIN"
            ) from error
        self._spawner = self._stage.spawner if self._stage else spawner()
        self._layer = f"{PLACE}/layer" if self._stage else lifeline().directory
        # What is shown on the stage before the holder starts is in its mounts, too.
        self._bwrap = bwrap(self._stage)
        mounts = host_root.mounts(self._stage) if root is None else []
        # A directory on the way to a mount is a mount itself, which cannot be renamed: no command can put a link in its
        # place, by which bwrap would make the later mounts of the next command somewhere on the node.
        self._parents = host_root.parents(mounts)
        self._binds = [
            *(text for path in self._parents for text in ("--bind", f"{self._layer}/root{path}", path)),
            *(text for source, target in mounts for text in ("--ro-bind", source, target)),
        ]
        self.environment: Mapping[str, str] = host_root.environment() if root is None else _IMAGE_ENVIRONMENT
        self._closing = threading.Lock()
        if root is not None and not any(os.path.lexists(root / shell) for shell in _SHELLS):
            raise SandboxError(f"the root {root} does not exist, or has no shell ({' or '.join(_SHELLS)})")
        place = _place(root, self._stage)
        try:
            self._holder = self._start_holder(place)
        except OSError as error:
            raise SandboxError(f"the holder of a sandbox cannot be started: {error}") from error
        finally:
            if place is not None and self._stage:
                self._stage.hide(place)

    def _start_holder(self, root: str | None) -> Process:
        ready, ready_end = os.pipe()
        try:
            try:
                holder = self._spawner.start(
                    [*_as_user(self._stage), tool("unshare"), "--user", "--map-root-user", "--mount", "--pid",
                     "--fork", "--kill-child=KILL", "/bin/sh", "-c", self._holder_script(root)],
                    descriptors=[lifeline().end, ready_end, ready_end],
                    environment={"PATH": TOOLS_PATH},
                )  # fmt: skip
            finally:
                os.close(ready_end)
            said = _first_line(ready)
        finally:
            os.close(ready)
        if not said.endswith("ready\n"):
            _kill(only_child(holder.pid) or holder.pid)
            holder.wait(_CLOSE_S)
            raise SandboxError(f"the namespaces of a sandbox cannot be made: {said.strip() or 'no answer'}")
        return holder

    def _holder_script(self, root: str | None) -> str:
        layer = shlex.quote(self._layer)
        size = self._settings.disk_mb << 20
        lines = [
            "set -e; umask 022",
            f"mount -t tmpfs -o size={size},nr_inodes={size // _INODE_BYTES + 64},mode=0755 layer {layer}",
            # bwrap looks its children up here.
            "mount -t proc proc /proc",
            f"cd {layer}; mkdir upper work root; mkdir -m 1777 shm upper/tmp",
        ]
        if root is None:
            lines.append(host_root.script())
            lines += [f"mkdir -p root{shlex.quote(path)}" for path in self._parents]
        else:
            lines += [
                f"cd {shlex.quote(root)}",
                # Overlaid directories have the owner of the upper one: home is the user's even if root unpacked it.
                f"[ -L root ] || mkdir -m 0700 {layer}/upper/root",
                # Images leave the names of the host to the engine.
                f"[ -L etc ] || [ -s etc/hosts ] || {{ mkdir {layer}/upper/etc; "
                f"printf '127.0.0.1 localhost\\n::1 localhost\\n' > {layer}/upper/etc/hosts; }}",
                overlay_command(root, self._layer),
            ]
        return "\n".join([*lines, "cd /; echo ready; exec cat >/dev/null 2>&1"])

    def start(
        self, argv: Sequence[bytes], *, environment: Mapping[str, str], stdin: int, output: int, status: int
    ) -> Process:
        """Enters the holder's namespaces and runs bwrap there; see `Enclosure`."""
        pid = self._holder.pid
        variables = [text for name, value in environment.items() for text in ("--setenv", name, value)]
        filter_fd, write_end = os.pipe()
        program = call_filter()
        try:
            os.write(write_end, program or b"")
        finally:
            os.close(write_end)
        try:
            process = self._spawner.start(
                [
                    *_as_user(self._stage), tool("prlimit"), *self._limits(), "--",
                    tool("nsenter"), f"--user=/proc/{pid}/ns/user", f"--mount=/proc/{pid}/ns/mnt",
                    f"--pid=/proc/{pid}/ns/pid_for_children", "--preserve-credentials", "--",
                    self._bwrap,
                    "--unshare-all", "--unshare-user", "--disable-userns", "--uid", "0", "--gid", "0",
                    "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1",
                    "--hostname", "sandbox", "--json-status-fd", "3", *(["--seccomp", "4"] if program else []),
                    "--bind", f"{self._layer}/root", "/", *self._binds, "--proc", "/proc", "--dev", "/dev",
                    "--bind", f"{self._layer}/shm", "/dev/shm", "--remount-ro", "/dev",
                    "--clearenv", *variables, "--chdir", "/", "--", *argv,
                ],
                descriptors=[stdin, output, output, status, filter_fd],
                environment={},
            )  # fmt: skip
        finally:
            os.close(filter_fd)
        with contextlib.suppress(OSError):
            # When the node is out of memory, no part of the run shall go in favour of a sandbox.
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(_FIRST_TO_GO)
        return process

    def _limits(self) -> list[str]:
        limits = ["--core=0", f"--nofile={min(_MAX_FILES, hard_limit(resource.RLIMIT_NOFILE))}"]
        if counts_processes_by_namespace():
            own = self.num_own_tasks + _OUTER_TASKS
            # One more than the bound, so that passing it is seen.
            limits.append(f"--nproc={min(self._settings.max_processes + own + 1, hard_limit(resource.RLIMIT_NPROC))}")
        return limits

    def kill(self, process: Process) -> None:
        """Kills the first process of the command's process namespace, once there is one."""
        outer = only_child(process.pid)
        first = only_child(outer) if outer else None
        if first:
            _kill(first)

    def processes(self, process: Process) -> list[str]:
        """All of the holder's process namespace."""
        return processes(f"/proc/{self._holder.pid}/root/proc")

    def path(self, path: str) -> str:
        """The same."""
        return path

    def is_full(self) -> bool:
        """Whether the layer has no block or no file left."""
        try:
            layer = os.statvfs(f"/proc/{self._holder.pid}/root{self._layer}")
        except OSError:
            return False
        return layer.f_bfree == 0 or layer.f_ffree == 0

    def close(self) -> None:
        """Kills the first process of the holder's process namespace, and with it all others."""
        with self._closing:
            deadline = time.monotonic() + _CLOSE_S
            # Not once it has ended: its id may be another process's by then.
            while not self._holder.wait(0) and time.monotonic() < deadline:
                _kill(only_child(self._holder.pid) or self._holder.pid)
                self._holder.wait(0.5)


def _place(root: Path | None, stage: Stage | None) -> str | None:
    """Where the holder finds the root."""
    if root is None or stage is None:
        return None if root is None else str(root.absolute())
    try:
        return stage.show(root)
    except OSError as error:
        raise SandboxError(f"the root {root} cannot be mounted: {error}") from error


def _as_user(stage: Stage | None) -> list[str]:
    """The beginning of a command line that becomes the user of sandboxes; it dies with the spawner's thread."""
    user = ["--reuid", str(USER_ID), "--regid", str(USER_ID), "--clear-groups"] if stage else []
    return [tool("setpriv"), *user, "--pdeathsig", "KILL", "--"]


def _first_line(fd: int) -> str:
    """What the holder says first, or all that it said before it ended; empty when it says nothing in time."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    said, deadline = b"", time.monotonic() + _READY_S
    while b"ready\n" not in said and waiting.poll(max(0.0, 1e3 * (deadline - time.monotonic()))):
        data = os.read(fd, 4096)
        if not data:
            break
        said += data
    return said.decode(errors="replace")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
