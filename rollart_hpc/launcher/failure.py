"""Why an attempt failed, in one line that is kept, and what a user may want to read beside it."""

from __future__ import annotations

from pathlib import Path

from rollart_hpc.errors import RollartError
from rollart_hpc.launcher.plan import CONTROLLER
from rollart_hpc.observe.failures import read_failure
from rollart_hpc.processes import ManagedProcess, describe_exit, ending_signal

_SRUN_ERROR = "srun: error: "
_LOOKED_AT = 40


WRONG_INPUT = frozenset({2, 3})
"""Exit codes of errors that another attempt would meet again."""


class AttemptFailedError(RollartError):
    """An attempt ended before its run was done; the text says in one line what ended it."""

    def __init__(self, text: str, details: str = "", *, is_wrong_input: bool = False) -> None:
        super().__init__(text)
        self.details = details
        """More of it, of any length."""
        self.is_wrong_input = is_wrong_input
        """Another attempt would fail the same way."""


def failure_of(process: ManagedProcess, code: int, failures: Path, *, addition: str = "") -> AttemptFailedError:
    """What is known about the end of a process: its own words, else srun's, else the end of its log.

    A process that was killed did not say anything: the end of its log has nothing to do with it.
    """
    head = f"{process.name} ended with {describe_exit(code)}{addition}"
    first, _, rest = (read_failure(failures, process.name) or _words_of_srun(process)).partition("\n")
    is_wrong_input = process.name == CONTROLLER and code in WRONG_INPUT
    if first:
        return AttemptFailedError(f"{head}: {first}", rest, is_wrong_input=is_wrong_input)
    return AttemptFailedError(head, "" if ending_signal(code) else process.tail(), is_wrong_input=is_wrong_input)


def _words_of_srun(process: ManagedProcess) -> str:
    """The last error that srun reported, such as the failure of a node; srun itself may end with 0 then."""
    lines = [line for line in process.tail(_LOOKED_AT).splitlines() if line.startswith(_SRUN_ERROR)]
    return lines[-1].removeprefix(_SRUN_ERROR) if lines else ""
