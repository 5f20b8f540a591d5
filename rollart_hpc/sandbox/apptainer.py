"""Sandboxes by apptainer, for nodes where it is installed and ordinary users have no namespaces of their own.

A sandbox is a directory with an image of bounded size, the layer, that every command mounts over the root. A command is
one ``apptainer exec`` with namespaces of its own, below a reaper. Its shell is the first process of its process
namespace; that one is killed, never the programs around it, which write the layer.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart_hpc.config.node import SandboxSection
from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox import host_root
from rollart_hpc.sandbox.lifeline import lifeline
from rollart_hpc.sandbox.node_tools import TOOLS_PATH, counts_processes_by_namespace
from rollart_hpc.sandbox.reaped import kill_reaped, namespace_processes, start_reaped
from rollart_hpc.sandbox.seccomp import DENIED_CALLS, SOCKET_FAMILIES
from rollart_hpc.sandbox.spawner import Process
from rollart_hpc.sandbox.stage import is_real_root

_PREPARE_S = 60.0
_JOURNAL_MB = 4
"""In the layer; apptainer takes no file system without one."""
_SMALLEST_MB = 4
_INODE_BYTES = 8192
"""Of the layer for each file that it may hold."""
_BLOCK_BYTES = 4096
_RESERVED_BLOCKS = 256
"""Of the layer, not for commands; one that begins with a full layer has them, for nothing can be removed without."""
_WRITE_BLOCKS = 288
"""What one write of the kernel's may need at once."""
_OWN_TASKS = 64
"""Of a user namespace, which the kernel's limit counts too: apptainer's and its file systems' threads."""
_SHELLS = ("bin/sh", "usr/bin/sh")
_SUPERBLOCK = 1024
_BLOCKS_PER_MB = 2048
"""Of 512 bytes, as a shell counts."""
_IMAGE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
_CLONE_NEWUSER = 0x10000000


class ApptainerEnclosure:
    """A directory with a layer, and the commands over it."""

    num_own_tasks = 16
    """The shell, and before it apptainer's own threads."""
    unusable: tuple[bytes, ...] = (
        b"FATAL:   stat /",
        b"FATAL:   container creation failed: chroot failed",
        b"FATAL:   exec /",
        b"env: ",
        b"/usr/bin/env: ",
    )

    def __init__(self, root: Path | None, settings: SandboxSection) -> None:
        """Makes the layer.

        Raises:
            SandboxError: there is no apptainer, or no layer can be made.
        """
        found = shutil.which("apptainer")
        if found is None:
            raise SandboxError("not installed on this node")
        if is_real_root():
            raise SandboxError("it would give commands root's rights on this node: start as an ordinary user")
        if root is not None and not any(os.path.lexists(root / shell) for shell in _SHELLS):
            raise SandboxError(f"the root {root} does not exist, or has no shell ({' or '.join(_SHELLS)})")
        self._program = found
        self._settings = settings
        self._directory = Path(tempfile.mkdtemp(dir=lifeline().directory))
        self._layer = self._directory / "layer.img"
        self._calls = self._directory / "calls.json"
        self._running: Process | None = None
        self._binds = [] if root is not None else host_root.mounts(None)
        self.environment: Mapping[str, str] = host_root.environment() if root is None else _IMAGE_ENVIRONMENT
        try:
            self._calls.write_text(call_profile())
            self._root = self._host_root() if root is None else root.absolute()
            self._make_layer(settings.disk_mb)
        except SandboxError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise SandboxError(f"the layer of a sandbox cannot be made: {error}") from error

    def _host_root(self) -> Path:
        root = self._directory / "root"
        root.mkdir()
        _checked(["/bin/sh", "-ec", f"umask 022; cd {shlex.quote(str(self._directory))}\n{host_root.script()}"])
        return root

    def _make_layer(self, disk_mb: int) -> None:
        program = shutil.which("mke2fs", path=TOOLS_PATH)
        if program is None:
            raise SandboxError(f"no mke2fs in {TOOLS_PATH}: install e2fsprogs")
        content = self._directory / "content"
        (content / "work").mkdir(parents=True)
        upper = content / "upper"
        # apptainer mounts on these, and makes none.
        for name, mode in (("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777), ("root", 0o700)):
            if not (self._root / name).is_symlink():
                (upper / name).mkdir(parents=True)
                (upper / name).chmod(mode)
        hosts = self._root / "etc/hosts"
        if not (hosts.parent.is_symlink() or hosts.exists()):
            (upper / "etc").mkdir()
            (upper / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        upper.chmod(0o755)
        size_mb = max(disk_mb, _SMALLEST_MB) + _JOURNAL_MB + (_RESERVED_BLOCKS * _BLOCK_BYTES >> 20)
        with self._layer.open("wb") as file:
            file.truncate(size_mb << 20)
        share = 100 * _RESERVED_BLOCKS * _BLOCK_BYTES / (size_mb << 20)
        _checked(
            [program, "-q", "-F", "-t", "ext3", "-b", str(_BLOCK_BYTES), "-m", f"{share:.6f}",
             "-J", f"size={_JOURNAL_MB}", "-i", str(_INODE_BYTES), "-d", str(content), str(self._layer)]
        )  # fmt: skip
        shutil.rmtree(content)

    def start(
        self, argv: Sequence[bytes], *, environment: Mapping[str, str], stdin: int, output: int, status: int
    ) -> Process:
        """Starts a command below a reaper; see `Enclosure`."""
        self._reserve()
        self._running = start_reaped(
            command_line(
                self._program,
                self._root,
                self._layer,
                self._calls,
                self._binds,
                environment,
                [b"/bin/sh", b"-c", begin(self._settings).encode(), b"sh", *argv],
            ),
            limits=["--core=0"],
            environment={"PATH": TOOLS_PATH, "HOME": str(self._directory)},
            descriptors=[stdin, output, output, status],
            is_namespace=True,
        )
        return self._running

    def kill(self, process: Process) -> None:
        """Tells the reaper to end all."""
        kill_reaped(process)

    def processes(self, process: Process) -> list[str]:
        """Those of the command's process namespace."""
        return namespace_processes(process)

    def path(self, path: str) -> str:
        """The same."""
        return path

    def is_full(self) -> bool:
        """Whether the layer has no block or no file left, or /dev/shm none while a command runs."""
        try:
            if self._has_filled_layer():
                return True
            first = [] if self._running is None else namespace_processes(self._running)
            return bool(first) and os.statvfs(f"{first[0]}/root/dev/shm").f_bfree == 0
        except OSError:
            return False

    def _has_filled_layer(self) -> bool:
        with self._layer.open("rb") as file:
            file.seek(_SUPERBLOCK)
            free_blocks, free_files = struct.unpack("<2I", file.read(20)[12:])
        return free_blocks < _RESERVED_BLOCKS + _WRITE_BLOCKS or free_files == 0

    def _reserve(self) -> None:
        """Says in the layer how many blocks are reserved; nothing has mounted it."""
        with self._layer.open("r+b") as file:
            num_blocks = 1 if self._has_filled_layer() else _RESERVED_BLOCKS
            file.seek(_SUPERBLOCK + 8)
            file.write(struct.pack("<I", num_blocks))

    def close(self) -> None:
        """Removes the directory; nothing runs between commands."""
        shutil.rmtree(self._directory, ignore_errors=True)


def command_line(
    program: str,
    root: Path,
    layer: Path,
    calls: Path,
    mounts: Sequence[tuple[str, str]],
    environment: Mapping[str, str],
    argv: Sequence[bytes],
) -> list[str | bytes]:
    """The arguments that run a command over a root and a layer, read-only mounts of the host beside it."""
    binds = [text for source, target in mounts for text in ("--bind", f"{source}:{target}:ro")]
    # By env: apptainer sets some variables itself, and splits the values that it is given at commas.
    variables = [f"{name}={value}" for name, value in environment.items()]
    return [
        *(program, "--silent", "exec", "--containall", "--cleanenv", "--no-eval", "--no-init"),
        *("--no-home", "--no-privs", "--no-umask", "--no-mount", "tmp,home,cwd,sys,bind-paths"),
        *("--net", "--network", "none", "--dns", "127.0.0.1", "--hostname", "sandbox"),
        # apptainer's own /dev/shm has no bound.
        *("--scratch", "/dev/shm", "--security", f"seccomp:{calls}", "--overlay", str(layer), *binds, "--pwd", "/"),
        *(str(root), "/usr/bin/env", "-i", *variables, *argv),
    ]


def begin(settings: SandboxSection) -> str:
    """Shell text that bounds its process, says that it has begun, and becomes the command in its arguments."""
    # Writes to a full layer may fail late, when the file is closed: this one ends a write without end.
    lines = [
        f"ulimit -f {2 * settings.disk_mb * _BLOCKS_PER_MB}",
        "ulimit -n 4096",
        "echo 1000 > /proc/self/oom_score_adj",
    ]
    if counts_processes_by_namespace():
        # Not where apptainer is setuid and makes no user namespace: there all the user's processes would count.
        limit = settings.max_processes + _OWN_TASKS
        lines.append(
            f'read -r _ _ ids < /proc/self/uid_map; [ "$ids" = 4294967295 ] || ulimit -u {limit} || ulimit -p {limit}'
        )
    return "{ " + "; ".join(lines) + '; } 2>/dev/null; unset ids; echo >&3; exec 3>&-; exec "$@"'


def call_profile() -> str:
    """The filter of `seccomp` as a profile, and no user namespaces."""
    families = [family for family in range(max(SOCKET_FAMILIES)) if family not in SOCKET_FAMILIES]
    arguments = [_compared(0, "SCMP_CMP_EQ", family) for family in families]
    arguments.append(_compared(0, "SCMP_CMP_GT", max(SOCKET_FAMILIES)))
    new_user = _compared(0, "SCMP_CMP_MASKED_EQ", _CLONE_NEWUSER, _CLONE_NEWUSER)
    # Not clone3: apptainer answers EPERM whatever is asked for, at which the C library gives up.
    rules = [_refused(DENIED_CALLS), _refused(["clone", "unshare"], new_user)]
    rules += [_refused(["socket"], argument) for argument in arguments]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _compared(index: int, operator: str, value: int, masked: int = 0) -> dict[str, object]:
    return {"index": index, "value": value, "valueTwo": masked, "op": operator}


def _refused(names: Sequence[str], *arguments: dict[str, object]) -> dict[str, object]:
    return {"names": list(names), "action": "SCMP_ACT_ERRNO", "args": list(arguments)}


def _checked(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_PREPARE_S, check=False)
    if done.returncode:
        raise SandboxError(f"{' '.join(argv[:3])}: {done.stderr.strip()[-500:] or f'exit code {done.returncode}'}")
