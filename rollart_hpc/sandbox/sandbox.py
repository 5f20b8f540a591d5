"""What a sandbox is, whatever runtime makes it.

Invariants of every runtime:

- A command sees its root file system and nothing of the host: no files, processes, network, sockets or rights.
- Memory, disk, processes and output are bounded; a command that passes a bound ends, others do not notice.
- Writes stay from one command to the next, until `close`; the root itself is never changed and may be shared.
- When a command ends, by itself or by its deadline, none of its processes is left; after `close`, or the end of the
  process that opened it by whatever way, nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

Ending = Literal["exit", "timeout", "memory", "processes", "disk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How one command ended."""

    output: str
    """Standard output and error in their order, decoded; see ``max_output_kb``."""
    exit_code: int
    """As a shell says it: 128 + n for signal n."""
    ending: Ending = "exit"
    """What ended it, where it was not the command itself: these are the policy's doing, not faults."""
    seconds: float = 0.0


class Sandbox(Protocol):
    """One root file system with a writable layer; one command at a time."""

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        directory: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> CommandResult:
        """Runs ``bash -c command`` (``sh`` where the root has no bash); returns when none of its processes is left.

        Args:
            command: shell text.
            timeout_s: after it all processes are killed.
            directory: working directory in the sandbox; that of `open_sandbox` when absent.
            environment: variables beside PATH, HOME, LANG and those of `open_sandbox`.
            stdin: its standard input.

        Raises:
            SandboxError: the sandbox was lost for a reason that is not the command's.
        """
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Puts a file into the sandbox, with the directories above it.

        Raises:
            SandboxError: it has no room, or is lost.
        """
        ...

    def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The first bytes of a regular file in the sandbox, links not followed out of it.

        Raises:
            FileNotFoundError: there is no such file.
            SandboxError: the sandbox is lost.
        """
        ...

    def close(self) -> None:
        """Ends everything in it and frees what it holds; may be called again."""
        ...

    def __enter__(self) -> Self:
        """Itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        ...
