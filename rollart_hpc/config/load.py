"""Reads a run's TOML file, applies overrides and explains what is wrong with it."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config in ``path`` with ``key.path=value`` overrides (values in TOML; bare words are strings).

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong; every fault is listed, one a line.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a run's TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    for override in overrides:
        _apply(data, override)
    return parse_config(data, source=str(path))


def parse_config(data: dict[str, Any], source: str = "config") -> RunConfig:
    """The validated config of a mapping.

    Raises:
        ConfigError: as in `load_config`.
    """
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        faults = [_explain(fault) for fault in error.errors()]
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults)) from error


def override_config(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """An existing config with overrides, validated again.

    Raises:
        ConfigError: as in `load_config`.
    """
    data = config.model_dump(mode="json", exclude_none=True)
    for override in overrides:
        _apply(data, override)
    return parse_config(data, source="config with --set")


def _apply(data: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not separator or not all(parts):
        raise ConfigError(f"--set {override}: expected key.path=value, for example rollout.alpha=0")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table = data
    for part in parts[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: {part} is a value, not a section")
        table = cast("dict[str, Any]", inner)
    table[parts[-1]] = value


def _explain(fault: ErrorDetails) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = _known_keys(fault["loc"][:-1])
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"valid keys here: {', '.join(sorted(known))}"
        return f"unknown key {where}; {hint}"
    if fault["type"] == "missing":
        return f"{where} is missing; add it"
    if fault["type"] == "value_error":
        return f"{where}: {_reason(fault)}" if where else _reason(fault)
    return f"{where} = {fault['input']!r}: {_reason(fault)}"


def _reason(fault: ErrorDetails) -> str:
    text = fault["msg"].removeprefix("Value error, ")
    return text[0].lower() + text[1:]


def _known_keys(location: Sequence[int | str]) -> list[str]:
    """Keys of the section at ``location``; a table keyed by the user's names is stepped through."""
    model: type[BaseModel] = RunConfig
    skip_name = False
    for part in location:
        if skip_name:
            skip_name = False
            continue
        annotation = model.model_fields[str(part)].annotation
        inner = get_args(annotation)
        skip_name = bool(inner)
        model = cast("type[BaseModel]", inner[-1] if inner else annotation)
    return list(model.model_fields)
