"""Weights under Hugging Face's names (Qwen3) to and from Megatron's shards.

Megatron stacks q, k and v per group of heads and gate over up; it splits matrices over tensor parallel
ranks and layers over pipeline stages. The order of an export is that of the stage's parameters, so it is
the same on every rank and for every version. A vocabulary padded for even parts is stripped again: what
leaves this module is bit for bit what Hugging Face's own model would hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open

from rollart_hpc.data_plane.backends.megatron.architecture import Architecture
from rollart_hpc.errors import ConfigError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class _Split(Enum):
    """How a parameter is cut over tensor parallel ranks."""

    REPLICATED = "replicated"
    COLUMNS = "columns"
    VOCABULARY = "vocabulary"
    QKV = "qkv"
    GATE_UP = "gate_up"


_LAYER_TENSORS: dict[str, tuple[_Split, tuple[str, ...]]] = {
    "input_layernorm.weight": (_Split.REPLICATED, ("input_layernorm",)),
    "self_attention.linear_qkv.weight": (_Split.QKV, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    "self_attention.q_layernorm.weight": (_Split.REPLICATED, ("self_attn.q_norm",)),
    "self_attention.k_layernorm.weight": (_Split.REPLICATED, ("self_attn.k_norm",)),
    "self_attention.linear_proj.weight": (_Split.COLUMNS, ("self_attn.o_proj",)),
    "pre_mlp_layernorm.weight": (_Split.REPLICATED, ("post_attention_layernorm",)),
    "mlp.linear_fc1.weight": (_Split.GATE_UP, ("mlp.gate_proj", "mlp.up_proj")),
    "mlp.linear_fc2.weight": (_Split.COLUMNS, ("mlp.down_proj",)),
    # Transformer Engine keeps a norm inside the linear layer that follows it.
    "self_attention.linear_qkv.layer_norm_weight": (_Split.REPLICATED, ("input_layernorm",)),
    "mlp.linear_fc1.layer_norm_weight": (_Split.REPLICATED, ("post_attention_layernorm",)),
}
_OUTER_TENSORS = {
    "embedding.word_embeddings.weight": (_Split.VOCABULARY, (EMBEDDING,)),
    "decoder.final_layernorm.weight": (_Split.REPLICATED, ("model.norm.weight",)),
    "output_layer.weight": (_Split.VOCABULARY, (HEAD,)),
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One parameter of this rank and the tensors that it is made of."""

    parameter: torch.nn.Parameter
    split: _Split
    names: tuple[str, ...]


class HfWeights:
    """The two-way mapping for one rank's part of a model."""

    def __init__(self, model: Any, architecture: Architecture, tensor_group: dist.ProcessGroup) -> None:
        self._architecture = architecture
        self._group = tensor_group
        self._num_ranks = tensor_group.size()
        self._entries = [self._entry(model, name, parameter) for name, parameter in model.named_parameters()]

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        """Fills the model from the safetensors files of a Hugging Face directory.

        Raises:
            ConfigError: a file or tensor is missing, or a tensor's shape is not the architecture's.
        """
        source = _Safetensors(directory)
        tied = self._architecture.tie_word_embeddings
        for entry in self._entries:
            names = (EMBEDDING,) if tied and entry.names == (HEAD,) else entry.names
            tensors = [source.read(name, self._architecture.tensor_shape(name)) for name in names]
            entry.parameter.copy_(self._cut(entry.split, tensors))

    @torch.no_grad()
    def export(
        self, source: Callable[[torch.nn.Parameter], torch.Tensor] = lambda parameter: parameter.data
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors of this pipeline stage by name; collective over the tensor parallel group.

        Args:
            source: What to export of each parameter; the weight itself by default.
        """
        for entry in self._entries:
            if entry.names == (HEAD,) and self._architecture.tie_word_embeddings:
                continue
            parts = self._gather(entry.split, source(entry.parameter))
            yield from zip(entry.names, self._join(entry.split, parts), strict=True)

    def _entry(self, model: Any, name: str, parameter: torch.nn.Parameter) -> _Entry:
        if not name.startswith("decoder.layers."):
            return _Entry(parameter, *_OUTER_TENSORS[name])
        _, _, position, rest = name.split(".", 3)
        layer: int = model.decoder.layers[int(position)].layer_number - 1
        split, names = _LAYER_TENSORS[rest]
        return _Entry(parameter, split, tuple(f"model.layers.{layer}.{part}.weight" for part in names))

    def _gather(self, split: _Split, shard: torch.Tensor) -> list[torch.Tensor]:
        if split is _Split.REPLICATED or self._num_ranks == 1:
            return [shard]
        shard = shard.contiguous()
        parts = [torch.empty_like(shard) for _ in range(self._num_ranks)]
        dist.all_gather(parts, shard, group=self._group)
        return parts

    def _cut(self, split: _Split, tensors: list[torch.Tensor]) -> torch.Tensor:
        """This rank's shard of full tensors."""
        rank, num_ranks = self._group.rank(), self._num_ranks
        first = tensors[0]
        match split:
            case _Split.REPLICATED:
                return first
            case _Split.COLUMNS:
                return first.chunk(num_ranks, 1)[rank]
            case _Split.VOCABULARY:
                padding = self._architecture.padded_vocab_size(num_ranks) - self._architecture.vocab_size
                return torch.nn.functional.pad(first, (0, 0, 0, padding)).chunk(num_ranks, 0)[rank]
            case _Split.GATE_UP:
                return torch.cat([tensor.chunk(num_ranks, 0)[rank] for tensor in tensors])
            case _Split.QKV:
                groups, size = self._architecture.num_key_value_heads, self._architecture.head_dim
                stacked = torch.cat([tensor.view(groups, -1, size, tensor.shape[-1]) for tensor in tensors], 1)
                return stacked.chunk(num_ranks, 0)[rank].flatten(0, 2)

    def _join(self, split: _Split, parts: list[torch.Tensor]) -> list[torch.Tensor]:
        """The full tensors of all ranks' shards."""
        match split:
            case _Split.REPLICATED:
                return [parts[0]]
            case _Split.COLUMNS:
                return [torch.cat(parts, 1)]
            case _Split.VOCABULARY:
                return [torch.cat(parts, 0)[: self._architecture.vocab_size]]
            case _Split.GATE_UP:
                halves = [part.chunk(2, 0) for part in parts]
                return [torch.cat([half[which] for half in halves], 0) for which in (0, 1)]
            case _Split.QKV:
                size = self._architecture.head_dim
                queries = self._architecture.num_attention_heads // self._architecture.num_key_value_heads
                stacked = torch.cat([part.view(-1, queries + 2, size, part.shape[-1]) for part in parts], 0)
                return [piece.flatten(0, 2).contiguous() for piece in stacked.split((queries, 1, 1), 1)]


class _Safetensors:
    """The tensors of a Hugging Face directory, in one file or many."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        index = directory / "model.safetensors.index.json"
        if index.exists():
            self._files: dict[str, str] = msgspec.json.decode(index.read_bytes())["weight_map"]
            return
        single = directory / "model.safetensors"
        if not single.exists():
            raise ConfigError(f"{directory} has neither {single.name} nor {index.name}; expected the model's weights")
        with self._open(single.name) as file:
            self._files = dict.fromkeys(file.keys(), single.name)

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One full tensor, of the shape that the architecture gives it."""
        if name not in self._files:
            raise ConfigError(f"{self._directory} has no tensor {name}; its weights do not fit its config.json")
        with self._open(self._files[name]) as file:
            tensor: torch.Tensor = file.get_tensor(name)
        if tensor.shape != shape:
            raise ConfigError(
                f"{self._directory}: {name} has shape {tuple(tensor.shape)}, expected {shape} by config.json; "
                "the weights belong to another configuration"
            )
        return tensor

    def _open(self, file_name: str) -> Any:
        try:
            return safe_open(self._directory / file_name, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{self._directory / file_name} cannot be read: {error}") from error
