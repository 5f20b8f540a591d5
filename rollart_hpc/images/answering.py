"""Calls into a shared file system, which may not return at all while its server is away.

Such a call cannot be interrupted, so it is made in a thread that can be left behind; the thread ends when the file
system answers again, or with the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

ANSWER_S = 30.0
P = ParamSpec("P")
T = TypeVar("T")


def answered(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the call gives or raises.

    Raises:
        TimeoutError: it did not return within 30 s.
    """
    outcome: queue.SimpleQueue[tuple[T, None] | tuple[None, Exception]] = queue.SimpleQueue()

    def make() -> None:
        try:
            outcome.put((call(*args, **kwargs), None))
        except Exception as error:  # it is raised where it was asked for
            outcome.put((None, error))

    threading.Thread(target=make, daemon=True, name="shared directory").start()
    try:
        result, error = outcome.get(timeout=ANSWER_S)
    except queue.Empty:
        raise TimeoutError(f"no answer within {ANSWER_S:g} s") from None
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]
