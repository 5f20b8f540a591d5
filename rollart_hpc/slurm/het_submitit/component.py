"""What one component of a het job runs, and with which options."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollart_hpc.processes import describe_exit


class Component:
    """One component: a function or a command, and its own options of sbatch.

    The name is that of its folder and is what `HetJob.components` and the results go by. The options have the names
    that `HetSlurmExecutor.update_parameters` takes and win over those.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., object] | None = None,
        *,
        command: Sequence[str] | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **parameters: object,
    ) -> None:
        if not name.strip() or name in {".", ".."} or set(name) & {"/", "%"} or not name.isprintable():
            raise ValueError(
                f"component name {name!r}: it names a folder; use printable characters, no slash and no percent sign "
                "(%j and %t in a path stand for the ids of the job and the task)"
            )
        if (function is None) == (command is None):
            raise ValueError(f"component {name!r}: give it a function or a command, one of the two")
        if command is not None and (isinstance(command, str) or not command or args or kwargs):
            raise ValueError(f"component {name!r}: a command is a list of words, its arguments included")
        self.name = name
        self.function = RunCommand(tuple(command)) if command is not None else function
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.parameters = parameters


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command as a function: its output goes to the task's log as it comes, its result is 0."""

    words: tuple[str, ...]

    def __call__(self) -> int:
        """Raises RuntimeError when the command does not end with exit code 0."""
        code = subprocess.run(self.words, stdin=subprocess.DEVNULL, check=False).returncode
        if code:
            raise RuntimeError(f"{' '.join(self.words)}: {describe_exit(code)}")
        return code
