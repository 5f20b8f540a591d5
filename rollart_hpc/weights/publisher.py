"""A trainer rank's way of putting its weights into the store (paper section 6.3).

Owns the rank's staging memory, reused from version to version. Two ways:

- `WeightPublisher.publish` streams: two buckets of host memory; while one bucket is put the next is copied and
  checksummed. The weights must not change until it returns.
- `WeightPublisher.snapshot` then `WeightPublisher.upload`: only the copy is exposed, the trainer goes on while the
  upload runs in another thread. Costs host memory of the size of this rank's weights. The copy stays until the next
  one: a store that lost the version gets it again from there.

Invariants: keys are ``w/<run>/<version>.<attempt>/<rank>/b<index>``, written once. When a call raises, the buckets
that it had put are removed and nothing refers to them: a version exists by its manifest alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from rollart_hpc.errors import WeightsError
from rollart_hpc.types import Bucket, TensorSlot
from rollart_hpc.weights.buckets import Placed, checksum, group_into_buckets, pack, packed_size
from rollart_hpc.weights.store import Buffer, WeightStore

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A bucket in host memory, not yet put."""

    slots: tuple[TensorSlot, ...]
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All buckets of one version in host memory."""

    version: int
    buckets: list[_Staged]
    was_tried: threading.Event = field(default_factory=threading.Event)
    """An upload was begun: what is in the store of it is its own."""


class WeightPublisher:
    """Publishes the weights of one trainer rank; one call at a time."""

    def __init__(self, store: WeightStore, *, run: str, attempt: int, rank: int, bucket_mb: int) -> None:
        self._store = store
        self._run = run
        self._attempt = attempt
        self._rank = rank
        self._bucket_bytes = bucket_mb << 20
        self._staging: list[Buffer] = []
        self._snapshot: _Snapshot | None = None
        self._busy = threading.Lock()

    def publish(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[Bucket, ...]:
        """Puts named tensors as a version's buckets, in order.

        Returns:
            The buckets for the manifest; all are in the store.

        Raises:
            WeightsError: a tensor does not fit (see `group_into_buckets`), the store is full or does not answer,
                or another call of this publisher still runs.
        """
        with self._exclusive(), _Upload(self._store, self._prefix(version)) as upload:
            self._snapshot = None
            for index, placed in enumerate(group_into_buckets(tensors, self._bucket_bytes)):
                # Of two staging buffers one is being put; the other one's put has to have ended.
                upload.wait(in_flight=1)
                upload.add(self._stage(index % 2, placed))
            return upload.finish()

    def snapshot(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copies named tensors to host memory; they may change as soon as it returns.

        Raises:
            WeightsError: a tensor does not fit, or the upload of the version before still runs.
        """
        with self._exclusive():
            self._snapshot = None
            grouped = group_into_buckets(tensors, self._bucket_bytes)
            self._snapshot = _Snapshot(version, [self._stage(index, placed) for index, placed in enumerate(grouped)])

    def upload(self) -> tuple[Bucket, ...]:
        """Puts the snapshot, typically from a background thread; again, what is not in the store any more.

        Returns:
            The buckets for the manifest; all are in the store.

        Raises:
            WeightsError: there is no snapshot, the store is full or does not answer.
        """
        with self._exclusive():
            snapshot = self._snapshot
            if snapshot is None:
                raise WeightsError("nothing to upload; take a snapshot first")
            keeps = snapshot.was_tried.is_set()
            snapshot.was_tried.set()
            with _Upload(self._store, self._prefix(snapshot.version), keeps=keeps) as upload:
                for staged in snapshot.buckets:
                    upload.wait(in_flight=1)
                    upload.add(staged)
                return upload.finish()

    def close(self) -> None:
        """Gives the staging memory back."""
        with self._exclusive():
            self._snapshot = None
            while self._staging:
                self._store.free(self._staging.pop())

    def _prefix(self, version: int) -> str:
        return f"w/{self._run}/{version}.{self._attempt}/{self._rank}"

    def _exclusive(self) -> _Exclusive:
        return _Exclusive(self._busy)

    def _stage(self, index: int, placed: list[Placed]) -> _Staged:
        size = packed_size(placed)
        if index == len(self._staging):
            self._staging.append(self._store.allocate(size))
        elif self._staging[index].nbytes < size:
            self._store.free(self._staging[index])
            self._staging[index] = self._store.allocate(size)
        buffer = self._staging[index][:size]
        pack(placed, buffer)
        return _Staged(tuple(slot for slot, _ in placed), buffer)


class _Exclusive:
    """Refuses a second call while one runs, instead of overwriting the staging memory under it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise WeightsError("this publisher is still busy with the version before; wait for its upload to end")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Upload:
    """Puts buckets in a thread of its own; undoes them all when its block raises."""

    def __init__(self, store: WeightStore, prefix: str, *, keeps: bool = False) -> None:
        """``keeps``: a key that is there already is of an earlier upload of the same bytes."""
        self._store = store
        self._prefix = prefix
        self._keeps = keeps
        self._buckets: list[Bucket] = []
        self._keys: list[str] = []
        self._puts: list[Future[None]] = []
        self._waited = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weight-put")

    def __enter__(self) -> _Upload:
        return self

    def add(self, staged: _Staged) -> None:
        """Checksums the bucket and hands it to the thread."""
        key = f"{self._prefix}/b{len(self._buckets)}"
        self._keys.append(key)
        self._puts.append(self._thread.submit(self._put, key, staged.buffer))
        self._buckets.append(Bucket(key, staged.buffer.nbytes, checksum(staged.buffer), staged.slots))

    def _put(self, key: str, buffer: Buffer) -> None:
        if not self._keeps or not self._store.exists([key])[0]:
            self._store.put([key], [buffer])

    def wait(self, *, in_flight: int) -> None:
        """Waits until at most so many puts run; raises what they raised."""
        while len(self._puts) - self._waited > in_flight:
            self._puts[self._waited].result()
            self._waited += 1

    def finish(self) -> tuple[Bucket, ...]:
        """All buckets, once every put has ended well."""
        self.wait(in_flight=0)
        if not self._buckets:
            raise WeightsError(f"{self._prefix}: no tensors to publish")
        return tuple(self._buckets)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        if kind is None:
            return
        # A key whose put was refused may be another publication's: only our own are taken back.
        pairs = zip(self._keys, self._puts, strict=True)
        own = [key for key, put in pairs if not put.cancelled() and put.exception() is None]
        if not own:
            return
        try:
            self._store.remove(own)
        except WeightsError as second:
            _log.warning("%s: buckets of a failed publication stay in the store: %s", self._prefix, second)
