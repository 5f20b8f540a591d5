"""Resolves the ``module:attribute`` names that adapters take for parsers, formatters and factories."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any


def load(entry_point: str) -> Any:
    """Imports the module and returns the attribute.

    Raises:
        ValueError: the text is no ``module:attribute``.
        ImportError: there is no such module, or no such attribute in it.
    """
    module_name, _, path = entry_point.partition(":")
    if not module_name or not path:
        raise ValueError(f"got {entry_point!r}; expected module:attribute, as in my_package.actions:parse")
    module = importlib.import_module(module_name)
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise ImportError(f"{entry_point}: {error}") from error
