"""The child process that runs one environment at a time: ``python -m rollart_hpc.data_plane.environment_child``.

Consumes requests from its parent's `EnvironmentHost`, one at a time, and answers each; waits for nothing
else; ends when it is told to close or when the parent's end of the socket closes.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import enter
from rollart_hpc.bus.frames import receive_message, send_message
from rollart_hpc.data_plane.environment_instance import EnvironmentInstance, Transition
from rollart_hpc.errors import ConfigError, EnvironmentFault


class Load(msgspec.Struct, frozen=True, tag=True):
    """First request: import the class. Answered by `Loaded`."""

    entry_point: str
    args: dict[str, Any]


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Played`."""

    seed: int


class Step(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Played`."""

    action: str


class Close(msgspec.Struct, frozen=True, tag=True):
    """Last request: close the environment and end. Answered by the end."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """What the class declares."""

    light: bool
    replayable: bool


class Played(msgspec.Struct, frozen=True, tag=True):
    """The environment's answer."""

    transition: Transition


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request failed in the user's code; the causes are those of `EnvironmentFault`."""

    cause: str
    detail: str


Request = Load | Reset | Step | Close
Reply = Loaded | Played | Failed
NOT_LOADED = "not_loaded"
"""Cause of a `Failed` load."""

_REQUEST = cast("type[Request]", Request)


def main() -> None:
    """Serves requests until the end."""
    connection = enter()
    instance: EnvironmentInstance | None = None
    while (message := receive_message(connection)) is not None:
        request = codec.decode(message, _REQUEST)
        if isinstance(request, Close):
            break
        reply: Reply
        try:
            if isinstance(request, Load):
                instance = EnvironmentInstance(request.entry_point, request.args)
                reply = Loaded(instance.properties.light, instance.properties.replayable)
            elif instance is None:
                reply = Failed(NOT_LOADED, "no environment is loaded")
            elif isinstance(request, Reset):
                reply = Played(instance.reset(request.seed))
            else:
                reply = Played(instance.step(request.action))
        except EnvironmentFault as fault:
            reply = Failed(fault.cause, str(fault).removeprefix(f"{fault.cause}: "))
        except ConfigError as error:
            reply = Failed(NOT_LOADED, str(error))
        send_message(connection, codec.encode(reply))
    if instance is not None:
        instance.close()


if __name__ == "__main__":
    main()
