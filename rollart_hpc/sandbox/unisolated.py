"""Plain processes with the rights of this process's user, for nodes where nothing isolates and the user accepts that.

What remains of the promises: the deadline, the bounds of memory, processes and output, a bound for each file, a
directory of its own that goes with the sandbox, and no process that outlives its command.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart_hpc.config.node import SandboxSection
from rollart_hpc.errors import NoSandboxError, SandboxError
from rollart_hpc.sandbox import host_root
from rollart_hpc.sandbox.lifeline import lifeline
from rollart_hpc.sandbox.reaped import NUM_OWN_TASKS, kill_reaped, reaped_processes, start_reaped
from rollart_hpc.sandbox.spawner import Process


class UnisolatedEnclosure:
    """A directory, and processes in it."""

    num_own_tasks = NUM_OWN_TASKS + 1
    """And the shell."""
    unusable: tuple[bytes, ...] = ()

    def __init__(self, root: Path | None, settings: SandboxSection) -> None:
        """Makes the directory.

        Raises:
            NoSandboxError: a root is wanted, which plain processes cannot enter.
            SandboxError: the directory cannot be made.
        """
        if root is not None:
            raise NoSandboxError(
                f"the root {root} needs a sandbox, and none isolates on this node (`rollart-hpc sandbox check`); "
                "sandbox.unisolated = true serves only what runs on the node's own system"
            )
        self._settings = settings
        try:
            self.directory = Path(tempfile.mkdtemp(dir=lifeline().directory))
        except OSError as error:
            raise SandboxError(f"the directory of a sandbox cannot be made: {error}") from error
        self.environment: Mapping[str, str] = {
            **host_root.environment(),
            "HOME": str(self.directory),
            "TMPDIR": str(self.directory),
        }

    def start(
        self, argv: Sequence[bytes], *, environment: Mapping[str, str], stdin: int, output: int, status: int
    ) -> Process:
        """Starts a command below a reaper; see `Enclosure`."""
        return start_reaped(
            argv,
            limits=[f"--fsize={self._settings.disk_mb << 20}", "--core=0"],
            environment=environment,
            descriptors=[stdin, output, output, status],
        )

    def kill(self, process: Process) -> None:
        """Tells the reaper to end all."""
        kill_reaped(process)

    def processes(self, process: Process) -> list[str]:
        """The reaper and all below it."""
        return reaped_processes(process)

    def path(self, path: str) -> str:
        """In its directory, as if that were the root."""
        return f"{self.directory}{path}" if path.startswith("/") else path

    def is_full(self) -> bool:
        """Never: the disk is the host's."""
        return False

    def close(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
