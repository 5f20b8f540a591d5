"""AnsweredCalls: what a server has answered, by idempotency key, so that a repeated call is computed once.

Invariants: calls of one key that come while it is computed share that computation, which ends even if nobody waits
any more; failures are not kept, so that the next try computes again; what was not asked for the longest goes first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rollart_hpc.types import Score


class KeyReusedError(Exception):
    """A key came with another body than before."""


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: str
    score: asyncio.Task[Score | Exception]


class AnsweredCalls:
    """Answers of one server, at most ``size`` of them."""

    def __init__(self, tasks: asyncio.TaskGroup, *, size: int) -> None:
        self.num_repeated = 0
        """Calls that were answered by an earlier one's computation."""
        self._tasks, self._size = tasks, size
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def score(self, key: str, digest: str, compute: Callable[[], Coroutine[Any, Any, Score]]) -> Score:
        """The score of a call; ``digest`` is that of its body. An empty key stands for no other call.

        Raises:
            KeyReusedError: the key came with another body before.
            Exception: what ``compute`` raised.
        """
        if not key:
            return await compute()
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(digest, self._tasks.create_task(self._compute(key, compute)))
            self._drop_old()
        elif entry.digest != digest:
            raise KeyReusedError(key)
        else:
            self.num_repeated += 1
            self._entries.move_to_end(key)
        result = await asyncio.shield(entry.score)
        if isinstance(result, Exception):
            raise result
        return result

    async def _compute(self, key: str, compute: Callable[[], Coroutine[Any, Any, Score]]) -> Score | Exception:
        try:
            return await compute()
        except Exception as error:
            entry = self._entries.get(key)
            if entry is not None and entry.score is asyncio.current_task():
                del self._entries[key]
            return error

    def _drop_old(self) -> None:
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
