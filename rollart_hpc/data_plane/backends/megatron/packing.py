"""Cuts a rank's share of a batch into micro-batches of packed sequences (Megatron's thd format).

Nothing is averaged here: every token keeps its own loss weight, so the gradient is the same however the
sequences are cut. Only tokens that are trained or compared with their sampler reach the output layer;
token i is predicted from position i - 1.

Shape legend: T packed tokens, R rows of the output layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rollart_hpc.types import TrainBatch

IndexArray = npt.NDArray[np.int64]

_LEAST_FILL = 0.8
"""Lengths of a run differ from its first one's by this factor at most, which bounds the padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward pass; all tensors on the rank's device."""

    token_ids: torch.Tensor
    """[1, T]"""
    position_ids: torch.Tensor
    """[1, T] within each sequence."""
    packed: Any
    """Megatron's PackedSeqParams: where each sequence starts."""
    rows: torch.Tensor
    """[R] positions whose next token's logprob is needed."""
    targets: torch.Tensor
    """[R] those next tokens."""
    advantages: torch.Tensor
    """[R]"""
    loss_weights: torch.Tensor
    """[R]"""
    sampler_logprobs: torch.Tensor
    """[R]"""
    same_version: torch.Tensor
    """[R] bool"""


def check_batch(batch: TrainBatch, *, vocab_size: int, max_context: int) -> None:
    """Whether a batch can be trained.

    Raises:
        ValueError: its arrays contradict each other, or a sequence does not fit the model.
    """
    num_tokens, lengths = len(batch.token_ids), batch.lengths
    for name in ("advantages", "loss_weights", "sampler_logprobs", "same_version"):
        if len(getattr(batch, name)) != num_tokens:
            raise ValueError(f"batch.{name} has {len(getattr(batch, name))} entries for {num_tokens} tokens")
    if lengths.sum() != num_tokens or (lengths < 0).any():
        raise ValueError(f"batch.lengths sum up to {lengths.sum()}, expected the {num_tokens} tokens of the batch")
    if not num_tokens:
        return
    if lengths.max() > max_context:
        raise ValueError(f"a sequence has {lengths.max()} tokens, model.max_context allows {max_context}")
    if batch.token_ids.min() < 0 or batch.token_ids.max() >= vocab_size:
        raise ValueError(
            f"token ids go from {batch.token_ids.min()} to {batch.token_ids.max()}, the vocabulary has {vocab_size}"
        )
    first_tokens = (np.cumsum(lengths) - lengths)[lengths > 0]
    if batch.loss_weights[first_tokens].any() or batch.same_version[first_tokens].any():
        raise ValueError(
            "a sequence's first token is marked as sampled, but nothing stands before it to predict it from"
        )


def split_sequences(lengths: npt.NDArray[np.integer[Any]], max_tokens: int) -> list[IndexArray]:
    """Which sequences share a micro-batch: longest first, at most `max_tokens` in each but at least one.

    Neighbours of about equal length attend as one dense batch. Empty sequences are left out.
    """
    order = np.argsort(-lengths, kind="stable")
    groups, members, used = list[IndexArray](), list[int](), 0
    for sequence in order[lengths[order] > 0].tolist():
        length = int(lengths[sequence])
        if members and used + length > max_tokens:
            groups.append(np.asarray(members, np.int64))
            members, used = [], 0
        members.append(sequence)
        used += length
    if members:
        groups.append(np.asarray(members, np.int64))
    return groups


def runs_of_similar_length(bounds: list[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Cuts a pack into runs of sequences that pad well together.

    Args:
        bounds: Cumulative lengths of the sequences, from 0.

    Yields:
        First token, end token and the lengths of each run; together they cover the pack.
    """
    start, lengths = 0, list[int]()
    for first, end in pairwise(bounds):
        length = end - first
        if lengths and not _LEAST_FILL * lengths[0] <= length <= lengths[0] / _LEAST_FILL:
            yield start, first, lengths
            start, lengths = first, []
        lengths.append(length)
    if lengths:
        yield start, bounds[-1], lengths


def pack(batch: TrainBatch, sequences: IndexArray, device: torch.device) -> MicroBatch:
    """The named sequences of a batch as one micro-batch; none gives a placeholder that trains nothing."""
    if not len(sequences):
        return pack(whole_sequence([0]), np.zeros(1, np.int64), device)
    lengths = batch.lengths[sequences].astype(np.int64)
    starts = (np.cumsum(batch.lengths) - batch.lengths)[sequences]
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    tokens = positions + np.repeat(starts, lengths)
    needed = (batch.loss_weights[tokens] != 0) | (batch.same_version[tokens] != 0)
    chosen = tokens[needed]

    def to_device(array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return MicroBatch(
        token_ids=to_device(batch.token_ids[tokens].astype(np.int64)[None]),
        position_ids=to_device(positions[None]),
        packed=_sequence_bounds(lengths, device),
        rows=to_device(np.flatnonzero(needed) - 1),
        targets=to_device(batch.token_ids[chosen].astype(np.int64)),
        advantages=to_device(batch.advantages[chosen]),
        loss_weights=to_device(batch.loss_weights[chosen]),
        sampler_logprobs=to_device(batch.sampler_logprobs[chosen]),
        same_version=to_device(batch.same_version[chosen] != 0),
    )


def whole_sequence(token_ids: list[int]) -> TrainBatch:
    """A batch of one sequence that asks for the logprob of every token but the first and trains none."""
    length = len(token_ids)
    zeros = np.zeros(length, np.float32)
    return TrainBatch(
        step=0,
        token_ids=np.asarray(token_ids, np.int32),
        lengths=np.asarray([length], np.int32),
        advantages=zeros,
        loss_weights=zeros,
        sampler_logprobs=zeros,
        same_version=(np.arange(length) > 0).astype(np.uint8),
    )


def _sequence_bounds(lengths: IndexArray, device: torch.device) -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(device)
    longest = int(lengths.max())
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=longest, max_seqlen_kv=longest
    )
