"""What pydantic found wrong with a configuration, in words: where, what was got, what is expected."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rollart_hpc.config.section import PATTERNS_IN_WORDS

_OF_A_NAME = "[key]"
"""How pydantic marks a fault of a table's key instead of its value."""


def explain(model: type[BaseModel], error: ValidationError) -> list[str]:
    """One line for every fault; the alternatives of one value share a line."""
    lines: dict[str, str] = {}
    for fault in error.errors():
        where, holder = _follow(model, fault["loc"])
        known = _names(fault, holder)
        if known:
            lines[f"{where}\0name"] = f"unknown key {where}; {_hint(where, known)}"
        elif fault["type"] == "missing":
            lines[where] = f"{where} is missing; add it"
        elif where in lines:
            lines[where] += f", or {_reason(fault)}"
        elif fault["type"] == "value_error" or not fault["loc"] or fault["loc"][-1] == _OF_A_NAME:
            lines[where] = f"{where}: {_reason(fault)}" if where else _reason(fault)
        else:
            lines[where] = f"{where} = {fault['input']!r}: {_reason(fault)}"
    return list(lines.values())


def nearest(name: str, known: Sequence[str]) -> str:
    """``did you mean 'x'? `` for the known name that is most like ``name``, or nothing."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.5)
    return f"did you mean {by_folded[near[0]]!r}? " if near else ""


def _hint(where: str, known: Sequence[str]) -> str:
    return f"{nearest(where.rpartition('.')[2], known)}valid keys here: {', '.join(sorted(known))}"


def _reason(fault: ErrorDetails) -> str:
    if fault["type"] in {"model_type", "dict_type"}:
        return "expected a section with keys of its own"
    if fault["type"] == "string_pattern_mismatch":
        pattern = fault.get("ctx", {}).get("pattern", "")
        return f"expected {PATTERNS_IN_WORDS.get(pattern, f'text that matches {pattern}')}"
    text = fault["msg"].removeprefix("Value error, ")
    return text[0].lower() + text[1:]


def _names(fault: ErrorDetails, holder: Any) -> list[str]:
    """The names that are valid where the fault is that of an unknown one."""
    if fault["type"] == "extra_forbidden":
        return list(holder.model_fields)
    if fault["loc"] and fault["loc"][-1] == _OF_A_NAME:
        keys = get_args(holder)[0]
        return list(get_args(keys)) if get_origin(keys) is Literal else []
    return []


def _follow(model: type[BaseModel], location: Sequence[int | str]) -> tuple[str, Any]:
    """The keys that a user wrote along a location, and the section or table in which the last one stands.

    Pydantic's locations also name the alternatives of a union, which no user knows.
    """
    keys: list[str] = []
    holder: Any = model
    inside: Any = model
    for part in location:
        if inside is None or part == _OF_A_NAME:
            break
        holder = inside
        keys.append(str(part))
        inside = _container(_value_type(holder, part))
    return ".".join(keys), holder


def _value_type(holder: Any, key: int | str) -> Any:
    if isinstance(holder, type) and issubclass(holder, BaseModel):
        field = holder.model_fields.get(str(key))
        return field.annotation if field else None
    return get_args(holder)[-1]


def _container(annotation: Any) -> Any:
    """The section, table or list that a value of this type is or may be; None for plain values."""
    if get_origin(annotation) in (Union, UnionType):
        candidates = (_container(member) for member in get_args(annotation))
        return next((candidate for candidate in candidates if candidate is not None), None)
    if get_origin(annotation) in (dict, list):
        return annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
