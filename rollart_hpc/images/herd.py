"""When many processes of a node want the same thing at once, one of them gets it, and all of them get its outcome.

Also a failure: those who waited while one tried in vain do not all try in their turn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rollart_hpc.errors import ImageError
from rollart_hpc.images.deadline import Deadline
from rollart_hpc.images.locks import exclusive
from rollart_hpc.images.node_directory import NodeDirectory, write_whole


class _Failure(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    text: str
    retryable: bool


@contextmanager
def one_of_the_herd(node: NodeDirectory, kind: str, name: str, deadline: Deadline) -> Generator[None]:
    """For one process at a time; who waited looks first whether it is done.

    Raises:
        ImageError: the one who was waited for failed, with its text; or the deadline passed.
    """
    asked_at = time.time()
    note = node.failure(f"{kind} {name}")
    with exclusive(node.lock(kind, name), deadline, f"{kind} {name}"):
        _raise_if_failed_since(note, asked_at)
        try:
            yield
        except ImageError as error:
            failure = _Failure(at=time.time(), text=str(error), retryable=error.retryable)
            with contextlib.suppress(OSError):
                write_whole(note, msgspec.json.encode(failure))
            raise
        note.unlink(missing_ok=True)


def _raise_if_failed_since(note: Path, asked_at: float) -> None:
    try:
        failure = msgspec.json.decode(note.read_bytes(), type=_Failure)
    except (FileNotFoundError, msgspec.DecodeError):
        return
    if failure.at >= asked_at:
        raise ImageError(failure.text, retryable=failure.retryable)
