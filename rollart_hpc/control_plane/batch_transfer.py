"""How a batch's shares reach the trainer: on the bus, or through the weight store when they are too large for it."""

from __future__ import annotations

import asyncio
import logging

from rollart_hpc.bus import codec
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.errors import WeightsError
from rollart_hpc.types import StoredBatch, TrainBatch
from rollart_hpc.weights.store import WeightStore

_log = logging.getLogger(__name__)
_CALL_BYTES = 4096
"""What a call adds to its arguments, with room."""
_TRIES, _AGAIN_S = 30, 1.0
"""For a store that is being started again."""


class BatchTransfer:
    """Puts large shares into the store and removes them when nobody reads them any more."""

    def __init__(self, store: WeightStore, *, run: str, attempt: int) -> None:
        self._store, self._prefix = store, f"b/{run}/{attempt}"
        self._stored: tuple[str, ...] = ()

    async def sendable(self, shares: list[TrainBatch]) -> list[TrainBatch | StoredBatch]:
        """The shares as they travel.

        Raises:
            WeightsError: the store is full, or did not come back.
        """
        return [await self._one(rank, share) for rank, share in enumerate(shares)]

    async def trained(self) -> None:
        """Removes what is no longer needed; what was read a moment ago goes at a later call."""
        if self._stored:
            try:
                self._stored = await asyncio.to_thread(self._store.remove, self._stored)
            except WeightsError as error:
                _log.warning("batches stay in the store for now: %s", error)

    async def _one(self, rank: int, share: TrainBatch) -> TrainBatch | StoredBatch:
        if share.token_ids.nbytes * _BYTES_PER_TOKEN_ID < MAX_PAYLOAD_BYTES - _CALL_BYTES:
            return share
        key = f"{self._prefix}/{share.step}/{rank}"
        await self._put(key, codec.encode(share))
        self._stored += (key,)
        return StoredBatch(key=key)

    async def _put(self, key: str, data: bytes) -> None:
        for left in reversed(range(_TRIES)):
            try:
                await asyncio.to_thread(self._store.put_bytes, key, data)
            except WeightsError as error:
                if not left:
                    raise
                _log.warning("a batch is not yet in the store: %s", error)
                await asyncio.sleep(_AGAIN_S)
            else:
                return


_BYTES_PER_TOKEN_ID = 5
"""Bytes of all arrays for each byte of token ids, rounded up (four of four bytes, one of one)."""
