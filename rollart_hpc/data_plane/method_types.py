"""The types of a method's arguments and result: what a call's bytes are decoded as.

They are the method's annotations; where it has none, those of the method that it overrides.
"""

from __future__ import annotations

import inspect
import typing
from typing import Any

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.data_plane.declarations import overridden
from rollart_hpc.errors import BusError


def decode_arguments(method: Any, arguments: bytes) -> list[Any]:
    """The values of a bound method's positional parameters; those with a default may be missing at the end.

    Raises:
        BusError: they do not fit the parameters; the text says which.
    """
    hints = _hints(getattr(method, "__func__", method))
    parameters = list(inspect.signature(method).parameters.values())
    values = codec.decode(arguments, list[msgspec.Raw])
    required = [one.name for one in parameters if one.default is one.empty]
    if not len(required) <= len(values) <= len(parameters):
        raise BusError(f"{method.__name__} takes {[one.name for one in parameters]}, got {len(values)} arguments")
    decoded: list[Any] = []
    for value, parameter in zip(values, parameters, strict=False):
        try:
            decoded.append(codec.decode(memoryview(value), hints.get(parameter.name, Any)))
        except msgspec.ValidationError as error:
            raise BusError(f"{method.__name__}: argument {parameter.name!r}: {error}") from error
    return decoded


def result_type(method: Any) -> Any:
    """What a method's annotations say it returns; Any where they say nothing."""
    return _hints(getattr(method, "__func__", method)).get("return", Any)


def _hints(function: Any) -> dict[str, Any]:
    """Types by parameter and under ``return``; Any for object, which says as little."""
    try:
        own = typing.get_type_hints(inspect.unwrap(function))
    except NameError as error:
        raise BusError(
            f"{function.__qualname__}: its annotations are read when it is called, and {error}; import that name where "
            "the method is defined, not under TYPE_CHECKING"
        ) from error
    base = overridden(function)
    inherited = {} if base is None else _hints(base)
    names = {"return": "return"} | ({} if base is None else dict(zip(_names(function), _names(base), strict=False)))
    hints = {mine: inherited[theirs] for mine, theirs in names.items() if theirs in inherited} | own
    return {name: Any if hint is object else hint for name, hint in hints.items()}


def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)
