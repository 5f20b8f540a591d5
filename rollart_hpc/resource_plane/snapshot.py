"""What the resource plane leaves in a run's directory: how everything is now, and how the bindings came to be so.

RUN/attempts/N/resources.json is replaced at every change, RUN/attempts/N/bindings.jsonl only grows. The controller
writes both; whoever reads them needs no bus.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollart_hpc.bus.membership import Member
from rollart_hpc.errors import ConfigError
from rollart_hpc.resource_plane.hardware import HardwareClass
from rollart_hpc.resource_plane.records import Binding
from rollart_hpc.types import Role

SNAPSHOT = "resources.json"
HISTORY = "bindings.jsonl"


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """A pool and what is there of it."""

    name: str
    hardware: HardwareClass
    partition: str
    guest: bool
    planned: dict[Role, int]
    """Workers by role; without those that were given up."""
    present: dict[Role, int]


class ResourceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The live view of an attempt at one time."""

    attempt: int
    at: float
    """Seconds since the epoch."""
    pools: list[PoolState]
    members: list[Member]
    bindings: list[Binding]


def write_snapshot(directory: Path, snapshot: ResourceSnapshot) -> None:
    """Replaces an attempt's snapshot in one move.

    Raises:
        OSError: the disk did not take it; the one before is still there.
    """
    temporary = directory / f".{SNAPSHOT}"
    temporary.write_bytes(msgspec.json.encode(snapshot))
    temporary.replace(directory / SNAPSHOT)


def read_snapshot(directory: Path) -> ResourceSnapshot | None:
    """The newest snapshot of an attempt; None when there is none yet.

    Raises:
        ConfigError: the file is something else.
    """
    path = directory / SNAPSHOT
    try:
        return msgspec.json.decode(path.read_bytes(), type=ResourceSnapshot)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: not the resources of an attempt: {error}") from error
