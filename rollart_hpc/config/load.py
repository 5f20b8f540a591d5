"""Reads a run's TOML file, applies overrides and explains what is wrong with it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from rollart_hpc.config.faults import explain
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.section import Section
from rollart_hpc.errors import ConfigError

SectionT = TypeVar("SectionT", bound=Section)


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config in ``path`` with ``key.path=value`` overrides (values in TOML; bare words are strings).

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong; every fault is listed, one a line.
    """
    data = read_toml(path, expected="a run's TOML file")
    for override in overrides:
        apply_override(data, override)
    return parse_config(data, source=str(path))


def parse_config(data: dict[str, Any], source: str = "config") -> RunConfig:
    """The validated config of a mapping.

    Raises:
        ConfigError: as in `load_config`.
    """
    return validate(RunConfig, data, source)


def override_config(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """An existing config with overrides, validated again.

    Raises:
        ConfigError: as in `load_config`.
    """
    data = config.model_dump(mode="json", exclude_none=True)
    for override in overrides:
        apply_override(data, override)
    return parse_config(data, source="config with --set")


def read_toml(path: Path, expected: str) -> dict[str, Any]:
    """What the file holds.

    Raises:
        ConfigError: it cannot be read or is no TOML; ``expected`` says what to give instead.
    """
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of {expected}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def validate(model: type[SectionT], data: dict[str, Any], source: str) -> SectionT:
    """The validated section of a mapping; ``source`` begins every line about what is wrong.

    Raises:
        ConfigError: as in `load_config`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in explain(model, error))) from error


def apply_override(data: dict[str, Any], override: str) -> None:
    """Sets one ``key.path=value`` in a mapping of sections, which need not be there yet.

    Raises:
        ConfigError: it is no override, or goes through a value.
    """
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
