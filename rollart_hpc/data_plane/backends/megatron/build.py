"""Builds the Megatron model and its optimizer for one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import Float16Module

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.megatron.architecture import Architecture, transformer_config
from rollart_hpc.data_plane.backends.megatron.platform import Platform
from rollart_hpc.data_plane.backends.megatron.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One rank's part of the model and what trains it."""

    gpt: Any
    """GPTModel; its weights are random until they are loaded."""
    wrapped: Any
    """The same under Megatron's DistributedDataParallel."""
    optimizer: Any


def build_model(config: RunConfig, architecture: Architecture, platform: Platform, ranks: Ranks) -> Model:
    """The model of this rank's stage, its gradient buffers and the distributed optimizer."""
    megatron_config = transformer_config(architecture, platform, config.model, config.training)
    gpt: Any = GPTModel(
        megatron_config,
        platform.layer_spec,
        vocab_size=architecture.padded_vocab_size(config.training.tensor_parallel),
        max_sequence_length=config.model.max_context,
        pre_process=ranks.is_first_stage,
        post_process=ranks.is_last_stage,
        share_embeddings_and_output_weights=architecture.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=architecture.rotary_base,  # pyright: ignore[reportArgumentType] -- a float is what it computes with
    )
    module = Float16Module(megatron_config, gpt) if megatron_config.bf16 else gpt
    wrapped = DistributedDataParallel(
        megatron_config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
        module,
    )
    optimizer: Any = get_megatron_optimizer(_optimizer_config(config), [wrapped])
    megatron_config.finalize_model_grads_func = _reduce_gradients
    megatron_config.grad_scale_func = optimizer.scale_loss
    megatron_config.no_sync_func = wrapped.no_sync
    return Model(gpt=gpt, wrapped=wrapped, optimizer=optimizer)


def _optimizer_config(config: RunConfig) -> OptimizerConfig:
    training = config.training
    return OptimizerConfig(
        optimizer="adam",
        lr=training.learning_rate,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        weight_decay=training.weight_decay,
        clip_grad=training.clip_grad_norm,
        use_distributed_optimizer=True,
        bf16=config.model.dtype == "bfloat16",
        params_dtype=getattr(torch, config.model.dtype),
    )


def _reduce_gradients(model: list[Any], _num_tokens: torch.Tensor | None = None, **kwargs: Any) -> None:
    """Sums gradients over all ranks and divides by nothing: the loss weights carry the denominators."""
    finalize_model_grads(model, None, **kwargs)
