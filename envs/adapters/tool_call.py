"""Finds the tool call in a policy's text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FENCE = "```"


class CallSyntaxError(ValueError):
    """The text was meant as a call and is none; the message is for the policy."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of one tool."""

    name: str
    arguments: dict[str, Any]


def find_call(text: str) -> ToolCall | None:
    """The first call in Hermes' tags, else in a ```json block, else the text itself; None if there is none.

    Raises:
        CallSyntaxError: what stands in the tags, or in an object with a ``name``, is no call.
    """
    begin = text.find(_OPEN)
    if begin >= 0:
        end = text.find(_CLOSE, begin)
        return _call(_json(text[begin + len(_OPEN) : end if end >= 0 else len(text)]))
    begin = text.find(f"{_FENCE}json")
    if begin >= 0:
        begin += len(_FENCE) + len("json")
        end = text.find(_FENCE, begin)
        inner = text[begin : end if end >= 0 else len(text)]
    else:
        inner = text.strip()
    if not inner.strip().startswith("{"):
        return None
    try:
        value = _json(inner)
    except CallSyntaxError:
        return None
    # Other objects, as in an answer that is JSON, are not meant as calls.
    return _call(value) if isinstance(value, dict) and "name" in value and "arguments" in value else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CallSyntaxError(f"the call is no JSON ({str(error)[:100]})") from None


def _call(value: Any) -> ToolCall:
    arguments = value.get("arguments", {}) if isinstance(value, dict) else None
    if not isinstance(arguments, dict) or not isinstance(value.get("name"), str):
        raise CallSyntaxError('a call has the form {"name": NAME, "arguments": {...}}')
    return ToolCall(value["name"], arguments)
