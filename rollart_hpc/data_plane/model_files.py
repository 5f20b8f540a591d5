"""What a model's directory in Hugging Face format says of its tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from rollart_hpc.errors import ConfigError


def end_tokens(directory: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's eos_token, then those of generation_config.json.

    Raises:
        ConfigError: there is none, or a file is no JSON.
    """
    tokens: list[int] = []
    settings = read_json(directory / "tokenizer_config.json")
    if (token := tokenizer.token_to_id(token_text(settings, "eos_token"))) is not None:
        tokens.append(token)
    generation = read_json(directory / "generation_config.json").get("eos_token_id")
    tokens.extend(generation if isinstance(generation, list) else [generation] if generation is not None else [])
    if not tokens:
        raise ConfigError(f"{directory}: no end token; expected eos_token in tokenizer_config.json")
    return tuple(dict.fromkeys(tokens))


def read_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:
        raise ConfigError(f"{directory / 'tokenizer.json'}: cannot be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty when there is none.

    Raises:
        ConfigError: it is no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return cast("dict[str, Any]", content)


def token_text(settings: dict[str, Any], name: str) -> str:
    """The text of a special token of tokenizer_config.json; empty when there is none."""
    token = settings.get(name)
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
