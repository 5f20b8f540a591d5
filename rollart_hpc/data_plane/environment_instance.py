"""One environment of a user's class, with everything it returns checked.

The same object serves light environments in the worker and all others in a child process. Invariant: from
here on the system sees `Transition` records of plain values, or an `EnvironmentFault`, and nothing else.

What is raised says by its type what may help: something that could not be had (`OSError`, a retryable `RollartError`)
may be there at the next try; a `RollartError` that is not retryable, and a ValueError, TypeError or KeyError of the
constructor or of `reset`, come of what the config or the task's row says.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import msgspec
import numpy as np

from rollart_hpc.config.resolve import resolve
from rollart_hpc.data_plane.environment_spec import BAD_TYPE, CONFIGURATION, RAISED, UNAVAILABLE
from rollart_hpc.errors import ConfigError, EnvironmentFault, RollartError, raised_text
from rollart_hpc.interfaces import Environment, EnvironmentProperties

_log = logging.getLogger(__name__)
_OF_THE_INPUT = frozenset({ValueError, TypeError, KeyError})
"""Exactly these, raised by the constructor or `reset`: classes below them mostly tell of an answer from outside."""


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

    def reset(self, seed: int, task: Mapping[str, Any]) -> Transition:
        """Starts an episode; makes the environment first if there is none.

        Raises:
            EnvironmentFault: raised, unavailable, configuration, bad_type.
        """
        environment = self._made()
        reset = _guarded("reset", lambda: environment.reset(seed=seed, task=task), _OF_THE_INPUT)
        value = cast(object, reset)
        if not isinstance(value, tuple) or len(cast(tuple[object, ...], value)) != 2:
            raise EnvironmentFault(BAD_TYPE, f"reset returned {_shown(value)}; expected (observation, info)")
        observation, info = cast(tuple[object, object], value)
        return Transition(_text("reset", observation), 0.0, False, False, _plain_info("reset", info))

    def step(self, action: str) -> Transition:
        """Applies the policy's text.

        Raises:
            EnvironmentFault: raised, unavailable, configuration, bad_type.
        """
        environment = self._environment
        if environment is None:
            raise EnvironmentFault(RAISED, "step was called before reset")
        value = cast(object, _guarded("step", lambda: environment.step(action)))
        if not isinstance(value, tuple) or len(cast(tuple[object, ...], value)) != 5:
            expected = "(observation, reward, terminated, truncated, info)"
            raise EnvironmentFault(BAD_TYPE, f"step returned {_shown(value)}; expected {expected}")
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
            EnvironmentFault: raised, unavailable.
        """
        environment, self._environment = self._environment, None
        if environment is not None:
            _guarded("close", environment.close)

    def _made(self) -> Environment:
        environment = self._environment
        if environment is None:
            made = _guarded("the constructor", lambda: self._class(**self._args), _OF_THE_INPUT)
            environment = self._environment = cast(Environment, made)
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


def _guarded(what: str, call: Callable[[], Any], of_the_input: Collection[type[BaseException]] = ()) -> Any:
    try:
        return call()
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        cause = _cause_of(error, of_the_input)
        if cause != CONFIGURATION:
            _log.warning("%s of an environment raised", what, exc_info=True)
        raise EnvironmentFault(cause, f"{what} raised {raised_text(error)}") from error


def _cause_of(error: BaseException, of_the_input: Collection[type[BaseException]]) -> str:
    if isinstance(error, RollartError):
        return UNAVAILABLE if error.retryable else CONFIGURATION
    if isinstance(error, OSError):
        return UNAVAILABLE
    return CONFIGURATION if type(error) in of_the_input else RAISED


def _text(method: str, value: object) -> str:
    if not isinstance(value, str):
        raise EnvironmentFault(BAD_TYPE, f"the observation of {method} is {_shown(value)}; expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EnvironmentFault(BAD_TYPE, f"the observation of {method} is not valid Unicode: {error}") from error
    return str(value)


def _finite(value: object) -> float:
    if not isinstance(value, int | float | np.integer | np.floating) or not math.isfinite(value):
        raise EnvironmentFault(BAD_TYPE, f"the reward of step is {_shown(value)}; expected a finite number")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise EnvironmentFault(BAD_TYPE, f"{name} of step is {_shown(value)}; expected True or False")
    return bool(value)


def _plain_info(method: str, value: object) -> dict[str, Any]:
    """A copy of the mapping in plain values; what the environment does to its own later is not seen."""
    try:
        return _info_decoder.decode(_info_encoder.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        detail = f"the info of {method} is {_shown(value)}; expected a mapping of plain values by name: {error}"
        raise EnvironmentFault(BAD_TYPE, detail) from error


def _plain_scalar(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is no plain value")


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:80]}{'...' if len(text) > 80 else ''}"


_info_encoder = msgspec.msgpack.Encoder(enc_hook=_plain_scalar)
_info_decoder = msgspec.msgpack.Decoder(dict[str, Any])
