"""What of a foreign ``info`` may travel: plain values by name.

Other libraries put arrays, objects and callables into it. The host takes anything that is not plain for a fault of the
environment, so adapters leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_ELEMENTS = 1000
"""Larger arrays are left out: an info travels with every step."""
_MAX_DEPTH = 8
_DROPPED = object()


def plain_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """The entries that are numbers, text, None, or lists and mappings of these; arrays become lists."""
    plain = _plain(dict(info), 0)
    return plain if isinstance(plain, dict) else {}


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, np.ndarray) and value.size <= MAX_ELEMENTS and value.dtype.kind in "biuf":
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping) and depth <= _MAX_DEPTH:
        entries = {key: _plain(entry, depth + 1) for key, entry in value.items() if isinstance(key, str)}
        return {key: entry for key, entry in entries.items() if entry is not _DROPPED}
    if isinstance(value, list | tuple) and depth <= _MAX_DEPTH:
        elements = [_plain(element, depth + 1) for element in value]
        return _DROPPED if any(element is _DROPPED for element in elements) else elements
    return _DROPPED
