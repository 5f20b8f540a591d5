"""What differs between training on GPUs and on CPUs; everything else is the same code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from rollart_hpc.data_plane.backends.megatron import cpu_compat


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The device of this rank and what megatron-core must be told about it."""

    device: torch.device
    backend: str
    """Of torch.distributed."""
    layer_spec: Any
    """Megatron's description of one transformer layer."""
    config_overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of TransformerConfig."""


def detect(rank: int, master_address: str) -> Platform:
    """The GPU of this rank where there is one, else the CPU with the compatibility layer installed."""
    if torch.cuda.is_available():
        return _gpu(rank)
    return _cpu(master_address)


def _gpu(rank: int) -> Platform:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

    # A launcher that shows each rank one GPU leaves device 0 as the only choice.
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return Platform(
        device=device, backend="nccl", layer_spec=get_gpt_layer_with_transformer_engine_spec(qk_layernorm=True)
    )


def _cpu(master_address: str) -> Platform:
    cpu_compat.install()
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    from rollart_hpc.data_plane.backends.megatron.cpu_attention import PackedAttention

    if master_address in ("127.0.0.1", "localhost"):
        # Gloo otherwise listens on the address that the host's name resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spec: Any = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    fusions = (
        "gradient_accumulation_fusion",
        "masked_softmax_fusion",
        "bias_dropout_fusion",
        "bias_activation_fusion",
        "apply_rope_fusion",
        "persist_layer_norm",
    )
    overrides = {**dict.fromkeys(fusions, False), "use_cpu_initialization": True}
    return Platform(device=torch.device("cpu"), backend="gloo", layer_spec=spec, config_overrides=overrides)
