"""What an environment host and its children (`rollart_hpc.data_plane.environment_child`) say to each other.

A child serves one class with one set of arguments. An instance is a number that the host chooses; it is made by its
first `Reset`, and made anew by the next one after `Close` or a fault. At most one request of an instance is under way.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollart_hpc.data_plane.environment_instance import Transition
from rollart_hpc.interfaces import EnvironmentProperties


class Load(msgspec.Struct, frozen=True, tag=True):
    """First message: import the class. Answered by `Loaded` or `Refused`."""

    entry_point: str
    args: dict[str, Any]


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Played` or `Failed`."""

    instance: int
    seed: int
    task: dict[str, Any] = {}


class Step(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Played` or `Failed`."""

    instance: int
    action: str


class Close(msgspec.Struct, frozen=True, tag=True):
    """Close one environment. Answered by `Closed` or `Failed`."""

    instance: int


class End(msgspec.Struct, frozen=True, tag=True):
    """Last message: close all environments and end. Answered by the end."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The class is imported and declares this."""

    properties: EnvironmentProperties


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The class cannot be imported or is none; the text is that of a `ConfigError`."""

    detail: str


class Played(msgspec.Struct, frozen=True, tag=True):
    """The environment's answer."""

    instance: int
    transition: Transition
    seconds: float
    """What the call took in the child."""


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The environment is closed."""

    instance: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request failed in the user's code; the instance is gone. The causes are those of `EnvironmentFault`."""

    instance: int
    cause: str
    detail: str


Call = Reset | Step | Close
Request = Load | Call | End
Answer = Played | Closed | Failed
Reply = Loaded | Refused | Answer
