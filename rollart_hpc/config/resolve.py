"""Resolves ``module:attribute`` entry points: the one door through which user code enters the system.

Invariant: whatever goes wrong here is a `ConfigError` that names the entry point and the step that failed.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from rollart_hpc.errors import ConfigError


def resolve(entry_point: str) -> Any:
    """Imports the module and returns the attribute (dots go deeper) that ``module:attribute`` names.

    The current directory is importable, as it is for ``python -m``.

    Raises:
        ConfigError: the text is no entry point, the module is not found, importing it raised, or the
            attribute is missing.
    """
    module_name, separator, path = entry_point.partition(":")
    if not separator or not module_name or not path:
        raise ConfigError(f"{entry_point!r} is no entry point; expected module:attribute, as in my_package.lake:Lake")
    value: Any = _import(module_name, entry_point)
    for depth, name in enumerate(path.split(".")):
        if not hasattr(value, name):
            owner = ":".join([module_name, ".".join(path.split(".")[:depth])]).rstrip(":")
            raise ConfigError(f"{entry_point}: {owner} has no attribute {name!r}{_nearest(name, value)}")
        value = getattr(value, name)
    return value


def _import(module_name: str, entry_point: str) -> ModuleType:
    directory = str(Path.cwd())
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(
                f"{entry_point}: no module named {error.name!r}; install it, or put it on PYTHONPATH or in {directory}"
            ) from error
        raise ConfigError(f"{entry_point}: importing {module_name} needs {error.name!r}, not installed") from error
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{entry_point}: importing {module_name} raised {type(error).__name__}: {' '.join(str(error).split())} "
            f"({last.filename}:{last.lineno})"
        ) from error


def _nearest(name: str, owner: object) -> str:
    near = difflib.get_close_matches(name, [known for known in dir(owner) if not known.startswith("_")], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
