"""Qwen3 in plain torch for one CPU core, from random weights to files in Hugging Face format.

Same mathematics as transformers' Qwen3ForCausalLM with tied embeddings; projections that read the same input
are one matrix here and apart in the files. Shape suffixes: B sequences, T tokens, E hidden, V vocabulary,
H query heads, K key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from rollart_hpc.warm_start.recipe import ModelShape


@dataclass(slots=True, kw_only=True)
class _Layer:
    input_norm: Tensor
    qkv: Tensor
    query_norm: Tensor
    key_norm: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(slots=True)
class KeyValueCache:
    """Keys and values of every layer, [B, T, K, D] each; rows are written at their own positions."""

    keys: list[Tensor]
    values: list[Tensor]

    def reserve(self, length: int) -> None:
        """Makes room for sequences of ``length`` tokens."""
        missing = length - self.keys[0].shape[1]
        if missing > 0:
            self.keys = [functional.pad(keys, (0, 0, 0, 0, 0, missing)) for keys in self.keys]
            self.values = [functional.pad(values, (0, 0, 0, 0, 0, missing)) for values in self.values]

    def select(self, rows: Tensor) -> KeyValueCache:
        """The cache of some sequences."""
        return KeyValueCache([keys[rows] for keys in self.keys], [values[rows] for values in self.values])


class TinyQwen3:
    """The model's parameters and its two forward passes."""

    def __init__(self, shape: ModelShape, *, vocabulary_size: int, generator: torch.Generator) -> None:
        def normal(*size: int) -> Tensor:
            return torch.normal(0.0, shape.initializer_range, size, generator=generator).requires_grad_()

        def ones(size: int) -> Tensor:
            return torch.ones(size, requires_grad=True)

        self.shape = shape
        hidden, head = shape.hidden_size, shape.head_dim
        self.embedding_VE = normal(vocabulary_size, hidden)
        self.final_norm = ones(hidden)
        self.layers = [
            _Layer(
                input_norm=ones(hidden),
                qkv=normal((shape.num_heads + 2 * shape.num_kv_heads) * head, hidden),
                query_norm=ones(head),
                key_norm=ones(head),
                output=normal(hidden, shape.num_heads * head),
                mlp_norm=ones(hidden),
                gate_up=normal(2 * shape.intermediate_size, hidden),
                down=normal(hidden, shape.intermediate_size),
            )
            for _ in range(shape.num_layers)
        ]
        frequencies = 1.0 / shape.rope_theta ** (torch.arange(0, head, 2).float() / head)
        angles = torch.outer(torch.arange(shape.max_positions).float(), frequencies).repeat(1, 2)
        self._cosines_TD, self._sines_TD = angles.cos(), angles.sin()

    def parameters(self) -> list[Tensor]:
        """All parameters, once each."""
        per_layer = [getattr(layer, name) for layer in self.layers for name in _Layer.__slots__]
        return [self.embedding_VE, self.final_norm, *per_layer]

    def hidden_states(self, token_ids_BT: Tensor) -> Tensor:
        """[B, T, E] of whole sequences, padded on the right."""
        length = token_ids_BT.shape[1]
        cosines, sines = self._cosines_TD[:length, None], self._sines_TD[:length, None]
        x_BTE = functional.embedding(token_ids_BT, self.embedding_VE)
        for layer in self.layers:
            q_BTHD, k_BTKD, v_BTKD = self._projected(layer, x_BTE, cosines, sines)
            mixed_BHTD = functional.scaled_dot_product_attention(
                q_BTHD.transpose(1, 2), k_BTKD.transpose(1, 2), v_BTKD.transpose(1, 2), is_causal=True, enable_gqa=True
            )
            x_BTE = self._after_attention(layer, x_BTE, mixed_BHTD)
        return self._norm(x_BTE, self.final_norm)

    def next_hidden_states(self, token_ids_BT: Tensor, starts_B: Tensor, cache: KeyValueCache) -> Tensor:
        """[B, T, E] of tokens that follow ``starts_B`` cached ones; the cache takes them.

        What padding on the right writes is overwritten by the tokens that later take its positions.
        """
        positions_BT = starts_B[:, None] + torch.arange(token_ids_BT.shape[1])
        length = int(positions_BT.max()) + 1
        visible_B1TS = (torch.arange(length) <= positions_BT[..., None])[:, None]
        cosines, sines = self._cosines_TD[positions_BT][:, :, None], self._sines_TD[positions_BT][:, :, None]
        rows_B1 = torch.arange(len(token_ids_BT))[:, None]
        x_BTE = functional.embedding(token_ids_BT, self.embedding_VE)
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            q_BTHD, k_BTKD, v_BTKD = self._projected(layer, x_BTE, cosines, sines)
            keys[rows_B1, positions_BT], values[rows_B1, positions_BT] = k_BTKD, v_BTKD
            mixed_BHTD = functional.scaled_dot_product_attention(
                q_BTHD.transpose(1, 2),
                keys[:, :length].transpose(1, 2),
                values[:, :length].transpose(1, 2),
                attn_mask=visible_B1TS,
                enable_gqa=True,
            )
            x_BTE = self._after_attention(layer, x_BTE, mixed_BHTD)
        return self._norm(x_BTE, self.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] of hidden states [..., E]."""
        return functional.linear(hidden, self.embedding_VE)

    def new_cache(self, num_sequences: int) -> KeyValueCache:
        """A cache without room."""
        size = (num_sequences, 0, self.shape.num_kv_heads, self.shape.head_dim)
        layers = range(self.shape.num_layers)
        return KeyValueCache([torch.zeros(size) for _ in layers], [torch.zeros(size) for _ in layers])

    def save(self, directory: Path) -> None:
        """Writes model.safetensors, under transformers' names."""
        from safetensors.torch import save_file

        tensors = {name: tensor.detach().contiguous() for name, tensor in self._named_tensors()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    def _projected(self, layer: _Layer, x_BTE: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        joined = functional.linear(self._norm(x_BTE, layer.input_norm), layer.qkv).unflatten(-1, (-1, shape.head_dim))
        q_BTHD, k_BTKD, v_BTKD = joined.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=2)
        q_BTHD, k_BTKD = self._norm(q_BTHD, layer.query_norm), self._norm(k_BTKD, layer.key_norm)
        return _rotated(q_BTHD, cosines, sines), _rotated(k_BTKD, cosines, sines), v_BTKD

    def _after_attention(self, layer: _Layer, x_BTE: Tensor, mixed_BHTD: Tensor) -> Tensor:
        x_BTE = x_BTE + functional.linear(mixed_BHTD.transpose(1, 2).flatten(2), layer.output)
        gate, up = functional.linear(self._norm(x_BTE, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return x_BTE + functional.linear(functional.silu(gate) * up, layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.shape.norm_eps)

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        shape = self.shape
        yield "model.embed_tokens.weight", self.embedding_VE
        yield "model.norm.weight", self.final_norm
        heads = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        for index, layer in enumerate(self.layers):
            prefix = f"model.layers.{index}."
            query, key, value = layer.qkv.split([count * shape.head_dim for count in heads])
            gate, up = layer.gate_up.chunk(2)
            yield f"{prefix}input_layernorm.weight", layer.input_norm
            yield f"{prefix}self_attn.q_proj.weight", query
            yield f"{prefix}self_attn.k_proj.weight", key
            yield f"{prefix}self_attn.v_proj.weight", value
            yield f"{prefix}self_attn.q_norm.weight", layer.query_norm
            yield f"{prefix}self_attn.k_norm.weight", layer.key_norm
            yield f"{prefix}self_attn.o_proj.weight", layer.output
            yield f"{prefix}post_attention_layernorm.weight", layer.mlp_norm
            yield f"{prefix}mlp.gate_proj.weight", gate
            yield f"{prefix}mlp.up_proj.weight", up
            yield f"{prefix}mlp.down_proj.weight", layer.down


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat([-second, first], dim=-1) * sines
