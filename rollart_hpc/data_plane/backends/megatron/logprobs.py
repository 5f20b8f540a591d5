"""Logprobs and entropy of tokens from logits that are split over tensor parallel ranks.

The vocabulary may be padded to split evenly; padded entries are pushed out of the softmax first, so that
the results are exactly those of the unpadded vocabulary.

Shape legend: R rows, V this rank's part of the padded vocabulary.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

_EXCLUDED = -1e30
"""Finite, because 0 * inf is not 0; its exponential is 0 in every floating-point type."""
_ENTROPY_ROWS = 4096
"""Rows of one entropy computation; bounds its memory for large vocabularies."""


def token_logprobs(
    logits_RV: torch.Tensor,
    targets: torch.Tensor,
    *,
    temperature: float,
    vocab_size: int,
    group: dist.ProcessGroup,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logprob of each row's target and the entropy of each row, under a temperature.

    Args:
        logits_RV: [R, V] is overwritten.
        targets: [R] token ids.
        temperature: Divides the logits first.
        vocab_size: Without padding.
        group: The tensor parallel ranks that hold the other parts.

    Returns:
        logprobs [R], differentiable, and entropy [R] in nats, without gradient; equal on all ranks.
    """
    logits_RV = logits_RV.float()
    if temperature != 1.0:
        logits_RV = logits_RV / temperature
    first_padded = vocab_size - group.rank() * logits_RV.shape[1]
    if first_padded < logits_RV.shape[1]:
        padded = torch.arange(logits_RV.shape[1], device=logits_RV.device) >= first_padded
        logits_RV = logits_RV.masked_fill(padded, _EXCLUDED)
    # Megatron's cross entropy works in place, so the entropy comes first.
    entropy = torch.cat([_entropy(rows, group) for rows in logits_RV.detach().split(_ENTROPY_ROWS)])
    return -vocab_parallel_cross_entropy(logits_RV, targets), entropy


def _entropy(logits_RV: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    highest = logits_RV.amax(-1, keepdim=True)
    if group.size() > 1:
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits_RV - highest
    weights = shifted.exp()
    sums = torch.stack([weights.sum(-1), (weights * shifted).sum(-1)])
    if group.size() > 1:
        dist.all_reduce(sums, group=group)
    return sums[0].log() - sums[1] / sums[0]
