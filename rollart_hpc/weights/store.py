"""A client of the Mooncake store that speaks in exceptions.

Mooncake answers with integer codes and is silent where it should not be: a put on an existing key succeeds and
keeps the old value, a forced remove lets a running read return mixed bytes, an object without a pin is evicted,
a call on a closed handle may crash the process. Here, therefore: keys are written once, nothing is ever
force-removed, everything is hard-pinned, every size is compared, and a closed store raises.

All calls block and may be made from several threads; `close` only when they have returned. Mooncake itself
bounds them: about 4 s when the master is gone, 30 s when a peer is frozen.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from rollart_hpc.errors import CorruptWeightsError, MissingWeightsError, StoreFullError, WeightsError

ALIGNMENT = 64
"""Bytes; host buffers and the tensors within start at multiples of it."""

_NO_SPACE = -200
_INVALID_PARAMETERS = -600
_NOT_FOUND = -704
_HAS_LEASE = -706
_MEANINGS = {
    _NO_SPACE: "no room: the store is full or no memory owner is alive",
    _INVALID_PARAMETERS: "sizes or buffers do not fit",
    -703: "still being written",
    _NOT_FOUND: "no such object",
    _HAS_LEASE: "being read",
    -707: "the read took longer than the store's lease",
    -800: "the memory owner is gone or does not answer",
    -900: "the master does not answer",
    -901: "the master does not answer in time",
}
_DIGEST_BYTES = 8
_CONNECT_DEADLINE_S = 5.0

Buffer = npt.NDArray[np.uint8]


class StoreEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt's weight store is."""

    master: str
    """host:port of mooncake_master."""
    metadata: str = "P2PHANDSHAKE"
    """How peers find each other; the default needs no further service."""
    metrics_url: str = ""
    """Prometheus metrics of the master."""


class StoreLoss(msgspec.Struct, frozen=True, array_like=True):
    """The store was started again: what was in it is gone."""

    number: int
    """Which time of this attempt, from 1: it is said more than once."""


def describe_code(code: int) -> str:
    """Mooncake's integer code in words."""
    return f"{_MEANINGS.get(code, 'unknown')} (Mooncake code {code})"


def check_master(endpoint: StoreEndpoint) -> None:
    """Refuses an endpoint where nobody listens; Mooncake itself would try for 90 s.

    Raises:
        WeightsError: the master does not accept a connection within 5 s.
    """
    host, _, port = endpoint.master.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT_DEADLINE_S).close()
    except (OSError, ValueError) as error:
        raise WeightsError(f"no weight store at {endpoint.master}: {error}; is mooncake_master running?") from error


class WeightStore:
    """One process's client of the store; it lends no memory of its own. Use `connect`."""

    def __init__(self, handle: Any, replicate_config: Any, endpoint: StoreEndpoint) -> None:
        self.endpoint = endpoint
        self._open_handle: Any = handle
        self._config = replicate_config
        self._buffers: dict[int, Buffer] = {}

    @classmethod
    def connect(cls, endpoint: StoreEndpoint, *, host: str = "127.0.0.1") -> Self:
        """Connects from ``host``, an address of this node.

        Raises:
            WeightsError: Mooncake cannot be loaded or the master does not answer.
        """
        check_master(endpoint)
        # Read by Mooncake when it is set up: without it every connection tells its life on stderr.
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
        try:
            from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        except ImportError as error:
            raise WeightsError(f"Mooncake cannot be loaded: {error}") from error
        handle, config = MooncakeDistributedStore(), ReplicateConfig()
        config.with_hard_pin = True
        code = handle.setup(host, endpoint.metadata, 0, 0, "tcp", "", endpoint.master)
        if code != 0:
            raise WeightsError(f"no weight store at {endpoint.master}: {describe_code(code)}")
        return cls(handle, config, endpoint)

    @property
    def _handle(self) -> Any:
        if self._open_handle is None:
            raise WeightsError("this weight store is closed")
        return self._open_handle

    def allocate(self, size_bytes: int) -> Buffer:
        """Host memory that `put` and `get` may use, [size_bytes] uint8, aligned; give it back with `free`."""
        block = np.empty(size_bytes + ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        buffer = block[start : start + size_bytes]
        code = self._handle.register_buffer(buffer.ctypes.data, size_bytes)
        if code != 0:
            raise WeightsError(f"{size_bytes} bytes could not be registered: {describe_code(code)}")
        self._buffers[buffer.ctypes.data] = buffer
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Gives back what `allocate` lent; nothing may read or write it any more."""
        address = buffer.ctypes.data
        if self._buffers.pop(address, None) is not None:
            self._handle.unregister_buffer(address)

    def put(self, keys: Sequence[str], buffers: Sequence[Buffer]) -> None:
        """Stores each buffer, a slice of allocated memory, under its new key.

        Raises:
            StoreFullError: there is no room. Keys before it may be stored.
            WeightsError: a key exists, or the store does not answer.
        """
        if taken := [key for key, found in zip(keys, self.exists(keys), strict=True) if found]:
            raise WeightsError(f"{taken[0]} is in the store already; objects are written once")
        codes = self._handle.batch_put_from(list(keys), _addresses(buffers), [b.nbytes for b in buffers], self._config)
        for key, buffer, code in zip(keys, buffers, codes, strict=True):
            if code != 0:
                kind = StoreFullError if code == _NO_SPACE else WeightsError
                raise kind(f"{key} ({buffer.nbytes} bytes) could not be stored: {describe_code(code)}")

    def get(self, keys: Sequence[str], buffers: Sequence[Buffer]) -> None:
        """Fills each buffer, a slice of allocated memory, with the object of exactly its size.

        Raises:
            MissingWeightsError: an object is not there or could not be read.
            CorruptWeightsError: an object has another size.
        """
        codes = self._handle.batch_get_into(list(keys), _addresses(buffers), [b.nbytes for b in buffers])
        for key, buffer, code in zip(keys, buffers, codes, strict=True):
            if code == _INVALID_PARAMETERS or 0 <= code != buffer.nbytes:
                raise CorruptWeightsError(f"{key} has not the expected {buffer.nbytes} bytes: {_got(code)}")
            if code < 0:
                raise MissingWeightsError(f"{key} could not be read from {self.endpoint.master}: {describe_code(code)}")

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Which keys the index knows; their owner may be gone all the same.

        Raises:
            WeightsError: the master does not answer.
        """
        codes = self._handle.batch_is_exist(list(keys))
        for key, code in zip(keys, codes, strict=True):
            if code < 0:
                raise WeightsError(f"{key} could not be looked up at {self.endpoint.master}: {describe_code(code)}")
        return [code == 1 for code in codes]

    def remove(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Removes objects that nobody reads; absent ones are fine.

        Returns:
            The keys that stay because a reader's lease runs; try them again later.

        Raises:
            WeightsError: the master does not answer.
        """
        codes = self._handle.batch_remove(list(keys), False)
        for key, code in zip(keys, codes, strict=True):
            if code not in (0, _NOT_FOUND, _HAS_LEASE):
                raise WeightsError(f"{key} could not be removed: {describe_code(code)}")
        return tuple(key for key, code in zip(keys, codes, strict=True) if code == _HAS_LEASE)

    def put_bytes(self, key: str, data: bytes | memoryview) -> None:
        """Stores a message of any size with its checksum, for what is above the bus's payload limit.

        Raises:
            WeightsError: as `put`.
        """
        buffer = self.allocate(len(data) + _DIGEST_BYTES)
        try:
            buffer[_DIGEST_BYTES:] = np.frombuffer(data, np.uint8)
            buffer[:_DIGEST_BYTES] = np.frombuffer(_digest(buffer), np.uint8)
            self.put([key], [buffer])
        finally:
            self.free(buffer)

    def get_bytes(self, key: str) -> bytes:
        """The message stored by `put_bytes`.

        Raises:
            MissingWeightsError: it is not there or could not be read.
            CorruptWeightsError: its checksum differs.
        """
        size = self._handle.get_size(key)
        if size < _DIGEST_BYTES:
            raise MissingWeightsError(f"{key} could not be read from {self.endpoint.master}: {describe_code(size)}")
        buffer = self.allocate(size)
        try:
            self.get([key], [buffer])
            if buffer[:_DIGEST_BYTES].tobytes() != _digest(buffer):
                raise CorruptWeightsError(f"the checksum of {key} ({size} bytes) differs from the stored one")
            return buffer[_DIGEST_BYTES:].tobytes()
        finally:
            self.free(buffer)

    def close(self) -> None:
        """Disconnects; what was put stays. Later calls raise `WeightsError`, a second close does nothing."""
        if self._open_handle is None:
            return
        for buffer in list(self._buffers.values()):
            self.free(buffer)
        self._open_handle.close()
        self._open_handle = None


def _addresses(buffers: Sequence[Buffer]) -> list[int]:
    return [buffer.ctypes.data for buffer in buffers]


def _got(code: int) -> str:
    return describe_code(code) if code < 0 else f"got {code}"


def _digest(buffer: Buffer) -> bytes:
    return xxhash.xxh3_64_digest(buffer[_DIGEST_BYTES:].data)
