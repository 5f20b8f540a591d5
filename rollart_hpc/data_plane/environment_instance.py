"""One environment of a user's class, with everything it returns checked.

The same object serves light environments in the worker and all others in a child process. Invariant: from
here on the system sees `Transition` records of plain values, or an `EnvironmentFault`, and nothing else.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import numpy as np

from rollart_hpc.config.resolve import resolve
from rollart_hpc.errors import ConfigError, EnvironmentFault
from rollart_hpc.interfaces import Environment, EnvironmentProperties

_log = logging.getLogger(__name__)


class Transition(msgspec.Struct, frozen=True, array_like=True):
    """What `reset` (reward 0, flags False) or one `step` gave."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class EnvironmentInstance:
    """An environment that is made at its first reset and used again at every later one.

    Args:
        entry_point: ``module:attribute`` of the class.
        args: keyword arguments of its constructor.
    """

    def __init__(self, entry_point: str, args: Mapping[str, Any]) -> None:
        self._class: Callable[..., Environment] = resolve(entry_point)
        self.properties = _declared_properties(self._class, entry_point)
        self._args = args
        self._environment: Environment | None = None

    def reset(self, seed: int) -> Transition:
        """Starts an episode; makes the environment first if there is none.

        Raises:
            EnvironmentFault: raised, bad_type.
        """
        environment = self._made()
        value = cast(object, _guarded("reset", lambda: environment.reset(seed=seed)))
        if not isinstance(value, tuple) or len(cast(tuple[object, ...], value)) != 2:
            raise EnvironmentFault("bad_type", f"reset returned {_shown(value)}; expected (observation, info)")
        observation, info = cast(tuple[object, object], value)
        return Transition(_text("reset", observation), 0.0, False, False, _plain_info("reset", info))

    def step(self, action: str) -> Transition:
        """Applies the policy's text.

        Raises:
            EnvironmentFault: raised, bad_type.
        """
        environment = self._environment
        if environment is None:
            raise EnvironmentFault("raised", "step was called before reset")
        value = cast(object, _guarded("step", lambda: environment.step(action)))
        if not isinstance(value, tuple) or len(cast(tuple[object, ...], value)) != 5:
            expected = "(observation, reward, terminated, truncated, info)"
            raise EnvironmentFault("bad_type", f"step returned {_shown(value)}; expected {expected}")
        observation, reward, terminated, truncated, info = cast(tuple[object, ...], value)
        return Transition(
            _text("step", observation),
            _finite(reward),
            _flag("terminated", terminated),
            _flag("truncated", truncated),
            _plain_info("step", info),
        )

    def close(self) -> None:
        """Lets the environment free what it holds.

        Raises:
            EnvironmentFault: raised.
        """
        environment, self._environment = self._environment, None
        if environment is not None:
            _guarded("close", environment.close)

    def _made(self) -> Environment:
        environment = self._environment
        if environment is None:
            environment = cast(Environment, _guarded("the constructor", lambda: self._class(**self._args)))
            self._environment = environment
        return environment


def _declared_properties(environment_class: object, entry_point: str) -> EnvironmentProperties:
    properties = getattr(environment_class, "properties", EnvironmentProperties())
    is_environment = isinstance(environment_class, type) and all(
        callable(getattr(environment_class, name, None)) for name in ("reset", "step", "close")
    )
    if not is_environment or not isinstance(properties, EnvironmentProperties):
        raise ConfigError(
            f"{entry_point} is {_shown(environment_class)}; expected an environment class: reset, step, close, and "
            f"`properties` that are an EnvironmentProperties, got {_shown(properties)}"
        )
    return properties


def _guarded(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        _log.warning("%s of an environment raised", what, exc_info=True)
        last = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{what} raised {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        raise EnvironmentFault("raised", detail) from error


def _text(method: str, value: object) -> str:
    if not isinstance(value, str):
        raise EnvironmentFault("bad_type", f"the observation of {method} is {_shown(value)}; expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EnvironmentFault("bad_type", f"the observation of {method} is not valid Unicode: {error}") from error
    return str(value)


def _finite(value: object) -> float:
    if not isinstance(value, int | float | np.integer | np.floating) or not math.isfinite(value):
        raise EnvironmentFault("bad_type", f"the reward of step is {_shown(value)}; expected a finite number")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise EnvironmentFault("bad_type", f"{name} of step is {_shown(value)}; expected True or False")
    return bool(value)


def _plain_info(method: str, value: object) -> dict[str, Any]:
    """A copy of the mapping in plain values; what the environment does to its own later is not seen."""
    try:
        return _info_decoder.decode(_info_encoder.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        detail = f"the info of {method} is {_shown(value)}; expected a mapping of plain values by name: {error}"
        raise EnvironmentFault("bad_type", detail) from error


def _plain_scalar(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is no plain value")


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:80]}{'...' if len(text) > 80 else ''}"


_info_encoder = msgspec.msgpack.Encoder(enc_hook=_plain_scalar)
_info_decoder = msgspec.msgpack.Decoder(dict[str, Any])
