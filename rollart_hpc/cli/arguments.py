"""Keyword arguments as a user types them: a JSON object in the option ``--args``."""

from __future__ import annotations

import json
from typing import Any, cast

from rollart_hpc.errors import ConfigError


def parse_arguments(text: str, *, example: str) -> dict[str, Any]:
    """The arguments by name.

    Raises:
        ConfigError: the text is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--args {text!r}: no JSON: {error}; expected a JSON object, such as {example}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"--args {text!r}: expected a JSON object, such as {example}")
    return cast("dict[str, Any]", value)
