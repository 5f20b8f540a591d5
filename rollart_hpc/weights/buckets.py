"""How tensors lie in buckets: pure functions on host buffers (paper section 6.3).

Invariants: tensors keep their order, each starts at a multiple of 64 bytes, none spans two buckets. A bucket
holds at most the asked size unless it is a single larger tensor. Bytes between tensors are zero, so equal
weights give equal checksums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import xxhash

from rollart_hpc.errors import WeightsError
from rollart_hpc.types import TensorSlot
from rollart_hpc.weights.store import ALIGNMENT, Buffer

if TYPE_CHECKING:
    import torch

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""The element types that travel, by torch's name without the prefix."""

Placed = tuple[TensorSlot, "torch.Tensor"]


def align(offset: int) -> int:
    """The next offset at which a tensor or a bucket may start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def group_into_buckets(tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int) -> Iterator[list[Placed]]:
    """Places named tensors, in order, in buckets of at most ``bucket_bytes``.

    The input is consumed as the buckets are: tensors that are gathered one by one are alive for one bucket only.

    Raises:
        WeightsError: a name comes twice, a tensor is empty or has a type that does not travel.
    """
    placed: list[Placed] = []
    end, names = 0, set[str]()
    for name, tensor in tensors:
        if name in names:
            raise WeightsError(f"the tensor {name} comes twice; expected every name once")
        names.add(name)
        slot = _slot(name, tensor, align(end))
        if placed and slot.offset + slot.size_bytes > bucket_bytes:
            yield placed
            placed = []
            slot = _slot(name, tensor, 0)
        placed.append((slot, tensor))
        end = slot.offset + slot.size_bytes
    if placed:
        yield placed


def _slot(name: str, tensor: torch.Tensor, offset: int) -> TensorSlot:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if dtype not in DTYPE_BYTES:
        raise WeightsError(f"the tensor {name} is {dtype}; expected one of {sorted(DTYPE_BYTES)}")
    size_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if size_bytes == 0:
        raise WeightsError(f"the tensor {name} of shape {shape} has no elements; leave it out")
    return TensorSlot(name, dtype, shape, offset, size_bytes)


def packed_size(placed: list[Placed]) -> int:
    """Bytes of the bucket that holds these tensors."""
    return placed[-1][0].offset + placed[-1][0].size_bytes


def pack(placed: list[Placed], buffer: Buffer) -> None:
    """Copies tensors, from whatever device and layout, to their slots in the buffer, [packed_size] uint8."""
    end = 0
    for slot, tensor in placed:
        buffer[end : slot.offset] = 0
        tensor_view(buffer, slot).copy_(tensor.detach())
        end = slot.offset + slot.size_bytes


def tensor_view(buffer: Buffer, slot: TensorSlot) -> torch.Tensor:
    """The tensor in the bucket's buffer; it shares the buffer's memory."""
    import torch

    raw = torch.from_numpy(buffer[slot.offset : slot.offset + slot.size_bytes])
    return raw.view(getattr(torch, slot.dtype)).view(slot.shape)


def checksum(buffer: Buffer) -> str:
    """xxh3-64 of the buffer, hexadecimal."""
    return xxhash.xxh3_64_hexdigest(buffer.data)
