"""The pools, workers and bindings of a run's newest attempt, from its own files: while it goes on and afterwards."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollart_hpc.bus.membership import Member
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.json_lines import read_records
from rollart_hpc.launcher.run_directory import read_config
from rollart_hpc.resource_plane.profile import Profile, read_profile
from rollart_hpc.resource_plane.records import Binding
from rollart_hpc.resource_plane.snapshot import HISTORY, SNAPSHOT, PoolState, read_snapshot


class PoolsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run runs on, and where its work goes."""

    name: str
    directory: str
    attempt: int
    at: float
    """When it was so, seconds since the epoch; of a run that has ended, shortly before."""
    pools: list[PoolState]
    members: list[Member]
    bindings: list[Binding]
    """As they are."""
    history: list[Binding]
    """How they came to be so: every binding of the attempt, in order."""
    profile: Profile | None
    """What the profiler has measured of the run; None while it has not."""


def read_pools(directory: Path) -> PoolsReport:
    """The report of a run.

    Raises:
        ConfigError: it is no run, has not begun, or its controller has not written anything yet; or a file is not its.
    """
    config = read_config(directory)
    attempt = directory / "attempts" / "latest"
    if not attempt.exists():
        raise ConfigError(
            f"{directory}: no attempt of this run has begun, so that it has no pools yet; "
            f"`rollart-hpc status {directory}` says what it waits for"
        )
    snapshot = read_snapshot(attempt)
    if snapshot is None:
        raise ConfigError(
            f"{attempt.resolve() / SNAPSHOT}: is not there: the controller of this attempt has not begun yet, or "
            f"ended before it could; `rollart-hpc logs {directory}` says why"
        )
    return PoolsReport(
        name=config.run.name,
        directory=str(directory),
        attempt=snapshot.attempt,
        at=snapshot.at,
        pools=snapshot.pools,
        members=snapshot.members,
        bindings=snapshot.bindings,
        history=read_records(attempt / HISTORY, Binding),
        profile=read_profile(directory),
    )
