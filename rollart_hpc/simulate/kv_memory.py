"""The KV memory of an emulated engine: what running requests hold, and prefixes that stay after them.

A prefix is known at the points where a request's prompt or its response ended, which is where the next turn of the same
conversation and the other members of a group go on; what two prompts share beyond such a point is not found. Prefixes
that no running request stands on go when the memory is needed, the least recently used first and a longer one before
those that it goes on from.

Invariant: ids held, kept and free add up to the capacity. All lengths are of ids.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollart_hpc.types import Int32Array


@dataclass(slots=True, eq=False)
class _Prefix:
    parent: _Prefix | None
    """None for the empty one."""
    key: int
    end: int
    """Its length; what it adds to its parent is its own memory."""
    users: int = 0
    """Running requests that stand on it or on one that goes on from it."""

    @property
    def size(self) -> int:
        return self.end - (self.parent.end if self.parent else 0)


@dataclass(slots=True, eq=False)
class Lease:
    """What one running request holds."""

    prefix: _Prefix
    """The longest known one that it stands on."""
    own: int
    """Beyond it: the rest of the context, and room for what is generated."""

    @property
    def num_known(self) -> int:
        """Ids of the context that need not be computed."""
        return self.prefix.end


class KvMemory:
    """One engine's; see the module."""

    def __init__(self, *, capacity: int, max_context: int) -> None:
        self._free = capacity
        # A prefix is known by the sum of its ids, each times a number of its position's own, modulo 2**64.
        self._factors: npt.NDArray[np.uint64] = np.random.default_rng(0).integers(
            2**64, size=max_context, dtype=np.uint64
        )
        self._empty = _Prefix(None, 0, 0)
        self._prefixes: dict[int, _Prefix] = {}
        self._unused: OrderedDict[int, _Prefix] = OrderedDict()
        """Without users, the next one to go first."""
        self._unused_size = 0

    @property
    def free(self) -> int:
        """What nothing is held or kept in."""
        return self._free

    def hold(self, context: Int32Array, num_new: int) -> Lease | None:
        """Room for a context and ``num_new`` ids after it; None while running requests leave too little."""
        prefix = self._longest_known(context)
        own = len(context) + num_new - prefix.end
        self._use(prefix)
        if self._free + self._unused_size < own:
            self._leave(prefix)
            return None
        while self._free < own:
            self._forget_one()
        self._free -= own
        return Lease(prefix, own)

    def keep(self, lease: Lease, context: Int32Array) -> None:
        """The lease's context is computed up to here: who has the same one may go on from it."""
        size = len(context) - lease.prefix.end
        if size <= 0:
            return
        key = int(self._terms(context).sum())
        known = self._prefixes.get(key)
        lease.own -= size
        if known is None:
            # The request stands on it now, and through it on those before it.
            lease.prefix = self._prefixes[key] = _Prefix(lease.prefix, key, len(context), users=1)
            return
        self._use(known)
        self._leave(lease.prefix)
        self._free += size
        lease.prefix = known

    def release(self, lease: Lease) -> None:
        """The request has ended; what was kept of it stays."""
        self._leave(lease.prefix)
        self._free += lease.own

    def forget_all(self) -> None:
        """Drops every prefix; no lease may be left."""
        while self._unused:
            self._forget_one()

    def _longest_known(self, context: Int32Array) -> _Prefix:
        if self._prefixes:
            for key in reversed(np.cumsum(self._terms(context)).tolist()):
                if (prefix := self._prefixes.get(key)) is not None:
                    return prefix
        return self._empty

    def _terms(self, context: Int32Array) -> npt.NDArray[np.uint64]:
        return (context.astype(np.uint64) + np.uint64(1)) * self._factors[: len(context)]

    def _use(self, prefix: _Prefix) -> None:
        while prefix.parent is not None:
            if not prefix.users:
                del self._unused[prefix.key]
                self._unused_size -= prefix.size
            prefix.users += 1
            prefix = prefix.parent

    def _leave(self, prefix: _Prefix) -> None:
        while prefix.parent is not None:
            prefix.users -= 1
            if not prefix.users:
                self._unused[prefix.key] = prefix
                self._unused_size += prefix.size
            prefix = prefix.parent

    def _forget_one(self) -> None:
        key, prefix = self._unused.popitem(last=False)
        del self._prefixes[key]
        self._unused_size -= prefix.size
        self._free += prefix.size
