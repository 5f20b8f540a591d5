"""A generation worker's way of getting a version into host memory (paper section 6.3).

Owns two host buffers of the model's size that take turns: while one version is being loaded from the first, the
next is prefetched into the second. Invariants: nothing is handed out before every bucket's size and checksum
agree with the manifest; weights whose buffer was given to a newer version refuse to be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from rollart_hpc.errors import CorruptWeightsError, WeightsError
from rollart_hpc.types import Bucket, Manifest
from rollart_hpc.weights.buckets import align, checksum, tensor_view
from rollart_hpc.weights.store import Buffer, WeightStore

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class PulledWeights:
    """One verified version in host memory, valid until the second next `WeightPuller.prefetch`."""

    def __init__(self, manifest: Manifest, views: Sequence[Buffer]) -> None:
        self.manifest = manifest
        self._views: Sequence[Buffer] | None = views

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors in the manifest's order; the tensors are views of the puller's buffer.

        Raises:
            WeightsError: a newer version has taken the buffer.
        """
        for index, bucket in enumerate(self.manifest.buckets):
            for slot in bucket.tensors:
                if self._views is None:
                    raise WeightsError(f"version {self.manifest.version} was overwritten by a newer one in host memory")
                yield slot.name, tensor_view(self._views[index], slot)

    def release(self) -> None:
        """Forgets the buffer; reading raises from now on."""
        self._views = None


class WeightPuller:
    """Pulls versions for one worker; one prefetch at a time.

    Args:
        store: a connected client.
        retry_s: how long one bucket may keep failing before the pull is given up. Above 10 s it outlasts the
            time in which the store notices a dead memory owner. The last try may overrun it by Mooncake's own
            bounds, 4 s for a dead master and 30 s for a frozen peer.
    """

    def __init__(self, store: WeightStore, *, retry_s: float = 15.0) -> None:
        self._store = store
        self._retry_s = retry_s
        self._buffers: list[Buffer | None] = [None, None]
        self._held: list[PulledWeights | None] = [None, None]
        self._turn = 0

    def prefetch(self, manifest: Manifest) -> PulledWeights:
        """Fetches and verifies every bucket; while one is verified the next is being fetched.

        Raises:
            CorruptWeightsError: a bucket's size or checksum differs, still after ``retry_s``.
            MissingWeightsError: a bucket is not there or cannot be read, still after ``retry_s``.
        """
        turn = self._turn
        if held := self._held[turn]:
            held.release()
        views = self._layout(turn, manifest.buckets)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-get") as fetcher:
            self._fill(fetcher, manifest.buckets, views)
        pulled = PulledWeights(manifest, views)
        self._held[turn], self._turn = pulled, 1 - turn
        return pulled

    def _layout(self, turn: int, buckets: Sequence[Bucket]) -> list[Buffer]:
        starts, end = list[int](), 0
        for bucket in buckets:
            starts.append(align(end))
            end = starts[-1] + bucket.size_bytes
        buffer = self._buffers[turn]
        if buffer is None or buffer.nbytes < end:
            self._free(turn)
            buffer = self._buffers[turn] = self._store.allocate(end)
        return [buffer[start : start + bucket.size_bytes] for start, bucket in zip(starts, buckets, strict=True)]

    def _fill(self, fetcher: ThreadPoolExecutor, buckets: Sequence[Bucket], views: Sequence[Buffer]) -> None:
        def fetch(index: int) -> Future[None] | None:
            if index == len(buckets):
                return None
            return fetcher.submit(self._store.get, [buckets[index].key], [views[index]])

        done, pause_s, deadline = 0, _FIRST_PAUSE_S, time.monotonic() + self._retry_s
        fetching = fetch(0)
        while fetching is not None:
            following = None
            try:
                fetching.result()
                following = fetch(done + 1)
                _verify(buckets[done], views[done])
            except WeightsError as error:
                if not error.retryable or time.monotonic() + pause_s > deadline:
                    raise
                _log.warning("weights: trying again in %.2g s: %s", pause_s, error)
                if following is not None:
                    wait([following])
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                fetching = fetch(done)
            else:
                done, pause_s, deadline = done + 1, _FIRST_PAUSE_S, time.monotonic() + self._retry_s
                fetching = following

    def _free(self, turn: int) -> None:
        buffer, self._buffers[turn] = self._buffers[turn], None
        if buffer is not None:
            self._store.free(buffer)

    def close(self) -> None:
        """Gives the host memory back; weights that were handed out can no longer be read."""
        for turn in (0, 1):
            if held := self._held[turn]:
                held.release()
            self._held[turn] = None
            self._free(turn)


def _verify(bucket: Bucket, view: Buffer) -> None:
    found = checksum(view)
    if found != bucket.checksum:
        raise CorruptWeightsError(f"{bucket.key}: checksum {found}, expected {bucket.checksum} by the manifest")
