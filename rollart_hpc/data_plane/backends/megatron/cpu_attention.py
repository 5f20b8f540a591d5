"""Attention over packed sequences on the CPU, where Transformer Engine's is not to be had.

Megatron's own CPU attention knows no packing. This one cuts the pack into runs of neighbouring sequences of
about the same length, pads each run to its longest and gives it to torch as one batch. A causal mask is
all the mask that is needed: padding stands to the right, so no real token ever sees it.

Shape legend: T packed tokens, R sequences of a run, L the longest of them, N heads, G key heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.transformer.module import MegatronModule

from rollart_hpc.data_plane.backends.megatron.packing import runs_of_similar_length


class PackedAttention(MegatronModule):
    """Drop-in ``core_attention`` for sequences packed in Megatron's thd format."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_kwargs: Any) -> None:
        super().__init__(config=config)
        self._scale = softmax_scale

    def forward(
        self,
        query_TND: torch.Tensor,
        key_TGD: torch.Tensor,
        value_TGD: torch.Tensor,
        _attention_mask: None,
        *,
        packed_seq_params: Any,
        **_kwargs: Any,
    ) -> torch.Tensor:
        """Causal self-attention within each sequence; returns [T, N * D]."""
        bounds: list[int] = packed_seq_params.cu_seqlens_q.tolist()
        outputs = [
            self._attend(query_TND[start:end], key_TGD[start:end], value_TGD[start:end], lengths)
            for start, end, lengths in runs_of_similar_length(bounds)
        ]
        return torch.cat(outputs).flatten(1)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """One run: [tokens of the run, N, D]."""
        longest = max(lengths)
        positions = None if min(lengths) == longest else _padded_positions(lengths, longest)
        padded_query, padded_key, padded_value = (
            _pad(tensor, positions, len(lengths) * longest)
            .view(len(lengths), longest, *tensor.shape[1:])
            .transpose(1, 2)
            for tensor in (query, key, value)
        )
        attended_RNLD = F.scaled_dot_product_attention(
            padded_query,
            padded_key,
            padded_value,
            is_causal=True,
            scale=self._scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        flat = attended_RNLD.transpose(1, 2).flatten(0, 1)
        return flat if positions is None else flat.index_select(0, positions)

    def sharded_state_dict(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Attention has no weights."""
        return {}


def _padded_positions(lengths: list[int], longest: int) -> torch.Tensor:
    """[tokens] the place of each token in the padded run."""
    rows = torch.arange(longest)
    return torch.cat([rows[:length] + row * longest for row, length in enumerate(lengths)])


def _pad(tensor: torch.Tensor, positions: torch.Tensor | None, size: int) -> torch.Tensor:
    if positions is None:
        return tensor
    return tensor.new_zeros(size, *tensor.shape[1:]).index_copy(0, positions, tensor)
