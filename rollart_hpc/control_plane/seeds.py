"""Which seed a task plays next: a pure function of the run's seed and a cursor, so that a resumed run goes on."""

from __future__ import annotations

import hashlib
import random
from array import array
from functools import lru_cache

_SEED_BITS = 31


def seed_at(run_seed: int, task: str, index: int, num_seeds: int | None) -> int:
    """The environment seed of a task's group number ``index``.

    With ``num_seeds`` every seed below it comes once per epoch, in an order of its own each epoch; without,
    seeds do not repeat in practice.
    """
    if num_seeds is None:
        digest = hashlib.blake2b(f"{run_seed}/{task}/{index}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)
    epoch, position = divmod(index, num_seeds)
    return _order(run_seed, task, epoch, num_seeds)[position]


@lru_cache(maxsize=8)
def _order(run_seed: int, task: str, epoch: int, num_seeds: int) -> array[int]:
    """The seeds of one epoch; a data set may have millions of rows, and each group asks for its own."""
    order = array("I", range(num_seeds))
    random.Random(f"{run_seed}/{task}/{epoch}").shuffle(order)
    return order
