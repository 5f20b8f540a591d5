"""Batches that are too large for the bus, and a store that takes none."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from rollart_hpc.control_plane import batch_transfer
from rollart_hpc.control_plane.batch_transfer import BatchTransfer
from rollart_hpc.errors import StoreFullError
from rollart_hpc.types import TrainBatch
from rollart_hpc.weights.server import MooncakeMaster
from rollart_hpc.weights.store import WeightStore


def share(num_tokens: int) -> TrainBatch:
    zeros = np.zeros(num_tokens, np.float32)
    return TrainBatch(
        step=1,
        token_ids=np.zeros(num_tokens, np.int32),
        lengths=np.array([num_tokens], np.int32),
        advantages=zeros,
        loss_weights=zeros,
        sampler_logprobs=zeros,
        same_version=np.ones(num_tokens, np.uint8),
    )


async def test_a_store_without_memory_is_tried_again_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(batch_transfer, "_TRIES", 3)
    monkeypatch.setattr(batch_transfer, "_AGAIN_S", 0.05)
    master = await MooncakeMaster.start(log_dir=tmp_path)
    try:
        store = await asyncio.to_thread(WeightStore.connect, master.endpoint)
        transfer = BatchTransfer(store, run="r", attempt=1)
        small = share(10)
        assert await transfer.sendable([small]) == [small]
        with pytest.raises(StoreFullError, match=r"b/r/1/1/0 .* could not be stored: no room"):
            await asyncio.wait_for(transfer.sendable([share(1 << 19)]), 60)
        store.close()
    finally:
        await master.stop()
    assert caplog.text.count("a batch is not yet in the store") == 2
