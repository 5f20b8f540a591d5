"""Which model a run trains: what must be the same whenever the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import xxhash

from rollart_hpc.data_plane.backends.megatron.architecture import read_architecture
from rollart_hpc.errors import ConfigError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The architecture, the vocabulary and the tokenizer, without the weights; part of a checkpoint."""

    architecture: dict[str, str | int | float | bool]
    """Values of ``config.json`` that the weights' shapes or meaning depend on."""
    vocab_size: int
    tokenizer: dict[str, str]
    """xxh3-128 of each tokenizer file, hexadecimal; token ids and the text between turns depend on them."""


def identify_model(directory: Path) -> ModelIdentity:
    """The identity of the model in a Hugging Face directory.

    Raises:
        ConfigError: a file cannot be read, or the architecture is not one that can be trained.
    """
    architecture = read_architecture(directory)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    values: dict[str, str | int | float | bool] = {name: getattr(architecture, name) for name in names}
    try:
        tokenizer = {
            name: xxhash.xxh3_128_hexdigest((directory / name).read_bytes())
            for name in _TOKENIZER_FILES
            if (directory / name).exists()
        }
    except OSError as error:
        raise ConfigError(f"model.path: {error.filename} cannot be read ({error.strerror})") from error
    return ModelIdentity(
        architecture={
            "architectures": ", ".join(architecture.architectures),
            **values,
            "head_dim": architecture.head_dim,
            "rms_norm_eps": architecture.rms_norm_eps,
            "rope_theta": architecture.rotary_base,
            "tie_word_embeddings": architecture.tie_word_embeddings,
        },
        vocab_size=architecture.vocab_size,
        tokenizer=tokenizer,
    )


def differences(saved: ModelIdentity, now: ModelIdentity) -> list[str]:
    """What is not as it was saved, one line each; empty when it is the same model."""
    return compare(describe(saved), describe(now), "the checkpoint")


def compare(known: Mapping[str, str], here: Mapping[str, str], whose: str) -> list[str]:
    """What two descriptions of a model differ in, one line each; ``whose`` says where the first is from."""
    return [
        f"{key} is {here.get(key, 'absent')}, {whose} has {known.get(key, 'none')}"
        for key in sorted(known.keys() | here.keys())
        if known.get(key) != here.get(key)
    ]


def check_identity(saved: ModelIdentity, now: ModelIdentity) -> None:
    """Whether a run may go on with the model that its config names now.

    Raises:
        ConfigError: it is another model or vocabulary; the text has the keys that differ.
    """
    if lines := differences(saved, now):
        raise ConfigError(
            "model.path names another model than the run's checkpoints hold:\n  "
            + "\n  ".join(lines)
            + "\nset it back, or train the other model in a run of its own (run.name or run.directory)"
        )


def describe_model(directory: Path) -> dict[str, str]:
    """The identity of the model in a directory, in words.

    Raises:
        ConfigError: as in `identify_model`.
    """
    return describe(identify_model(directory))


def describe(identity: ModelIdentity) -> dict[str, str]:
    """Everything that makes up the identity, by what a user knows it as."""
    return {
        **{f"config.json {name}": str(value) for name, value in identity.architecture.items()},
        "config.json vocab_size": str(identity.vocab_size),
        **{f"the digest of {name}": digest for name, digest in identity.tokenizer.items()},
    }
