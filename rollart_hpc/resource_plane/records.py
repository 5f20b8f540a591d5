"""What the live view in the bus holds beside the members: pools and bindings."""

from __future__ import annotations

import secrets

import msgspec

from rollart_hpc.types import Role

DEFAULT_TAG = "default"


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of one hardware class; lives under its name as long as its owner does."""

    name: str
    hardware: str
    planned: dict[Role, int]
    """Workers that should be there by role; those that were given up are not counted any more."""
    partition: str = ""
    """Of the Slurm cluster; empty on one machine."""
    guest: bool = False
    """It joined the running run with workers of its own."""
    incarnation: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Where the work of one role under one tag goes (paper section 5.2)."""

    role: Role
    tag: str
    preferred: str
    """Hardware class that was asked for; empty where nothing was: any worker serves."""
    source: str
    """Who asked for it: affinity.<tag> of the config, a method of a worker class, the role's default, the profiler."""
    hardware: str
    """Hardware class that serves now; empty for several, or while there is none."""
    reason: str
    """Why it is that one, in words."""
    at: float
    """Since when, seconds since the epoch."""


class RoleBindings(msgspec.Struct, frozen=True, kw_only=True):
    """All bindings of a role; lives under the role's name as long as the controller does."""

    role: Role
    by_tag: dict[str, Binding]
    incarnation: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
