"""Reads a Hugging Face directory's ``config.json`` and says the same to megatron-core.

Only the dense Qwen3 architecture is known. What Megatron cannot lay out over the configured ranks is
refused here, before any process group is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rollart_hpc.config.schema import ModelSection, TrainingSection
from rollart_hpc.errors import ConfigError

if TYPE_CHECKING:
    from rollart_hpc.data_plane.backends.megatron.platform import Platform

_ARCHITECTURE = "Qwen3ForCausalLM"


class _Rope(msgspec.Struct, frozen=True):
    rope_theta: float | None = None
    rope_type: str = "default"


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of ``config.json`` that training needs, under Hugging Face's names."""

    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    use_sliding_window: bool = False
    rope_theta: float | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: Any = None

    @property
    def rotary_base(self) -> float:
        """The base of the rotary position embedding, wherever this version of the format keeps it."""
        nested = self.rope_parameters.rope_theta if self.rope_parameters else None
        return nested or self.rope_theta or 10000.0

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a full weight by its Hugging Face name."""
        hidden, queries = self.hidden_size, self.num_attention_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        shapes = {
            "q_proj": (queries, hidden),
            "k_proj": (keys, hidden),
            "v_proj": (keys, hidden),
            "o_proj": (hidden, queries),
            "q_norm": (self.head_dim,),
            "k_norm": (self.head_dim,),
            "gate_proj": (self.intermediate_size, hidden),
            "up_proj": (self.intermediate_size, hidden),
            "down_proj": (hidden, self.intermediate_size),
            "embed_tokens": (self.vocab_size, hidden),
            "lm_head": (self.vocab_size, hidden),
        }
        return shapes.get(name.split(".")[-2], (hidden,))

    def padded_vocab_size(self, tensor_parallel: int) -> int:
        """The vocabulary, rounded up so that tensor parallel ranks hold equal parts."""
        return -(-self.vocab_size // tensor_parallel) * tensor_parallel


def read_architecture(directory: Path) -> Architecture:
    """The architecture of the model in a Hugging Face directory.

    Raises:
        ConfigError: there is no readable ``config.json``, or it is not a dense Qwen3 as trained here.
    """
    path = directory / "config.json"
    try:
        architecture = msgspec.json.decode(path.read_bytes(), type=Architecture)
    except OSError as error:
        raise ConfigError(
            f"model.path is {directory}, but {path} cannot be read ({error.strerror}); "
            "expected a directory in Hugging Face format"
        ) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}; expected the configuration of a {_ARCHITECTURE}") from error
    if architecture.architectures != (_ARCHITECTURE,):
        raise ConfigError(f"{path}: architectures is {list(architecture.architectures)}, expected ['{_ARCHITECTURE}']")
    rope_type = architecture.rope_parameters.rope_type if architecture.rope_parameters else "default"
    for name, value, expected in (
        ("hidden_act", architecture.hidden_act, "silu"),
        ("attention_bias", architecture.attention_bias, False),
        ("use_sliding_window", architecture.use_sliding_window, False),
        ("rope_parameters.rope_type", rope_type, "default"),
        ("rope_scaling", architecture.rope_scaling, None),
    ):
        if value != expected:
            raise ConfigError(f"{path}: {name} is {value!r}; only {expected!r} can be trained")
    return architecture


def check_layout(architecture: Architecture, model: ModelSection, training: TrainingSection) -> None:
    """Whether the model can be cut over the configured ranks.

    Raises:
        ConfigError: a dimension does not divide, or the context is longer than the model's.
    """
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(architecture, name) % training.tensor_parallel:
            raise ConfigError(
                f"training.tensor_parallel is {training.tensor_parallel}, which does not divide the model's "
                f"{name} = {getattr(architecture, name)}; set it to a divisor"
            )
    if architecture.num_hidden_layers % training.pipeline_parallel:
        raise ConfigError(
            f"training.pipeline_parallel is {training.pipeline_parallel}, which does not divide the model's "
            f"num_hidden_layers = {architecture.num_hidden_layers}; set it to a divisor"
        )
    if model.max_context > architecture.max_position_embeddings:
        raise ConfigError(
            f"model.max_context is {model.max_context}, but the model has max_position_embeddings = "
            f"{architecture.max_position_embeddings}; lower the first"
        )


def transformer_config(
    architecture: Architecture, platform: Platform, model: ModelSection, training: TrainingSection
) -> Any:
    """The architecture as megatron-core's TransformerConfig."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from megatron.core.transformer import TransformerConfig

    dtype = getattr(torch, model.dtype)
    # Stages exchange packs whose lengths differ; Megatron ties that to this dispatcher even without experts.
    variable_lengths = (
        {"variable_seq_lengths": True, "moe_token_dispatcher_type": "alltoall"}
        if training.pipeline_parallel > 1
        else {}
    )
    return TransformerConfig(
        num_layers=architecture.num_hidden_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.intermediate_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_key_value_heads,
        kv_channels=architecture.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.rms_norm_eps,
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=training.tensor_parallel,
        pipeline_model_parallel_size=training.pipeline_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=model.dtype == "bfloat16",
        # No loss is averaged anywhere.
        calculate_per_token_loss=True,
        # Although every weight is loaded: initialising also marks which weights are tensor parallel, and
        # without the marks the gradient norm counts the first rank's shards only.
        perform_initialization=True,
        **variable_lengths,
        **platform.config_overrides,
    )
