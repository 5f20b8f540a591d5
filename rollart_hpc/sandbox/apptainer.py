"""Sandboxes by apptainer, for nodes where it is installed and ordinary users have no namespaces of their own.

A sandbox is a directory with an image of bounded size, the layer, that every command mounts over the root. A command is
one ``apptainer exec`` with namespaces of its own, below a reaper.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart_hpc.config.node import SandboxSection
from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox import host_root
from rollart_hpc.sandbox.lifeline import lifeline
from rollart_hpc.sandbox.reaped import NUM_OWN_TASKS, kill_reaped, reaped_processes, start_reaped
from rollart_hpc.sandbox.spawner import Process
from rollart_hpc.sandbox.stage import is_real_root

_PREPARE_S = 60.0
_SMALLEST_LAYER_MB = 64
_FAILURE = 255
_FULL_BLOCKS = 0.98
"""Share of the layer's size; its file system takes the rest for itself."""
_IMAGE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
}


class ApptainerEnclosure:
    """A directory with a layer, and the commands over it."""

    num_own_tasks = NUM_OWN_TASKS + 3
    """And apptainer's starter, its process in the namespace, the shell."""
    unusable: tuple[bytes, ...] = ()

    def __init__(self, root: Path | None, settings: SandboxSection) -> None:
        """Makes the layer.

        Raises:
            SandboxError: there is no apptainer, or it cannot make one.
        """
        found = shutil.which("apptainer")
        if found is None:
            raise SandboxError("not installed on this node")
        if is_real_root():
            raise SandboxError("it would give commands root's rights on this node: start as an ordinary user")
        self._program = found
        self._directory = Path(tempfile.mkdtemp(dir=lifeline().directory))
        self._layer = self._directory / "layer.img"
        self._size_bytes = max(settings.disk_mb, _SMALLEST_LAYER_MB) << 20
        self._binds = [] if root is not None else host_root.mounts(None)
        self.environment: Mapping[str, str] = host_root.environment() if root is None else _IMAGE_ENVIRONMENT
        try:
            _checked([found, "overlay", "create", "--sparse", "--size", str(self._size_bytes >> 20), str(self._layer)])
            if root is None:
                root = self._directory / "root"
                root.mkdir()
                _checked(["/bin/sh", "-ec", f"cd {self._directory}\n{host_root.script()}"])
        except SandboxError:
            self.close()
            raise
        self._root = root

    def start(
        self, argv: Sequence[bytes], *, environment: Mapping[str, str], stdin: int, output: int, status: int
    ) -> Process:
        """Starts a command below a reaper; see `Enclosure`."""
        return start_reaped(
            command_line(self._program, self._root, self._layer, self._binds, environment, argv),
            limits=["--core=0"],
            environment={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self._directory)},
            descriptors=[stdin, output, output, status],
            failure=_FAILURE,
        )

    def kill(self, process: Process) -> None:
        """Tells the reaper to end all."""
        kill_reaped(process)

    def processes(self, process: Process) -> list[str]:
        """The reaper and all below it."""
        return reaped_processes(process)

    def path(self, path: str) -> str:
        """The same."""
        return path

    def is_full(self) -> bool:
        """Whether the layer takes all of the disk that it may."""
        try:
            return self._layer.stat().st_blocks * 512 >= _FULL_BLOCKS * self._size_bytes
        except OSError:
            return False

    def close(self) -> None:
        """Removes the directory; nothing runs between commands."""
        shutil.rmtree(self._directory, ignore_errors=True)


def command_line(
    program: str,
    root: Path,
    layer: Path,
    mounts: Sequence[tuple[str, str]],
    environment: Mapping[str, str],
    argv: Sequence[bytes],
) -> list[str | bytes]:
    """The arguments that run a command over a root and a layer, read-only mounts of the host beside it."""
    binds = [text for source, target in mounts for text in ("--bind", f"{source}:{target}:ro")]
    # By env: apptainer sets some variables itself, and splits the values that it is given at commas.
    variables = [f"{name}={value}" for name, value in environment.items()]
    return [
        *(program, "--silent", "exec", "--containall", "--cleanenv", "--no-home", "--no-privs", "--no-umask"),
        *("--net", "--network", "none", "--hostname", "sandbox", "--overlay", str(layer), *binds, "--pwd", "/"),
        *(str(root), "/usr/bin/env", "-i", *variables, *argv),
    ]


def _checked(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_PREPARE_S, check=False)
    if done.returncode:
        raise SandboxError(f"{' '.join(argv[:3])}: {done.stderr.strip()[-500:] or f'exit code {done.returncode}'}")
