"""What a runtime makes of a root file system: the part of a sandbox that differs between runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rollart_hpc.sandbox.spawner import Process


class Enclosure(Protocol):
    """One isolated root with its writable layer, in which commands are started one after the other."""

    environment: Mapping[str, str]
    """PATH, HOME and LANG of its commands."""
    num_own_tasks: int
    """What `processes` has beside the command's own."""
    unusable: tuple[bytes, ...]
    """With one of these the output begins when the root has no ``/bin/sh`` that could run; none where nothing tells."""

    def start(
        self, argv: Sequence[bytes], *, environment: Mapping[str, str], stdin: int, output: int, status: int
    ) -> Process:
        """Starts a command; ``argv[0]`` is an absolute path in the sandbox.

        When the process ends, so has everything that the command started. It writes ``{"exit-code": N}`` to
        ``status`` if it was the command that ended, and not what runs it.

        Args:
            argv: program and arguments.
            environment: whole.
            stdin: descriptor.
            output: descriptor of standard output and error.
            status: descriptor.

        Raises:
            OSError: it cannot be started.
        """
        ...

    def kill(self, process: Process) -> None:
        """Asks the kernel to end all that a command started; returns at once, and may do nothing while it starts."""
        ...

    def processes(self, process: Process) -> list[str]:
        """Directories in a proc file system of the processes of the command that is running."""
        ...

    def path(self, path: str) -> str:
        """How its commands name a path of the sandbox."""
        ...

    def is_full(self) -> bool:
        """Whether the writable layer has no room left."""
        ...

    def close(self) -> None:
        """Ends everything and frees what it holds."""
        ...
