"""The pools of a run as its user wants to see them: from what the leader recorded and Slurm says of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launcher.attempt_log import AttemptRecord, MemberRecord, read_members
from rollart_hpc.launcher.plan import plan_workers
from rollart_hpc.slurm.queue.job_state import JobStatus
from rollart_hpc.slurm.script.allocation import leader_pool
from rollart_hpc.types import Role


class RoleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of a role in one pool."""

    role: str
    present: int
    planned: int
    guests: int = 0
    """Workers that joined the running run, beside those."""


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pool: a component of the job, its nodes and its workers; or one that joined, without component and nodes."""

    name: str
    hardware: str
    state: str
    """Of its component in Slurm; empty on one machine."""
    nodes: str
    roles: list[RoleStatus]


def read_pools(
    config: RunConfig, directory: Path, running: AttemptRecord | None, job: JobStatus | None
) -> list[PoolStatus]:
    """The pools of a run: those of its config, the leader's first, and those that joined.

    Args:
        config: of the run.
        directory: of the run.
        running: the attempt that goes on, if one does.
        job: the run's newest job, if it has one.
    """
    alive = _alive(directory, running)
    present, guests = _present(config, alive), _guests(alive)
    found: list[PoolStatus] = []
    for offset, (name, pool) in enumerate(_by_component(config)):
        component = job.component(offset) if job is not None else None
        roles = [
            RoleStatus(
                role=str(role), present=present[name, str(role)], planned=planned, guests=guests[name, str(role)]
            )
            for role in Role
            if (planned := int(getattr(pool, str(role)))) or guests[name, str(role)]
        ]
        found.append(
            PoolStatus(
                name=name,
                hardware=pool.hardware,
                state=component.state if component is not None else "",
                nodes=component.nodes if component is not None else "",
                roles=roles,
            )
        )
    return [*found, *_joined_pools(config, alive, guests)]


def _joined_pools(
    config: RunConfig, alive: Sequence[MemberRecord], guests: Mapping[tuple[str, str], int]
) -> list[PoolStatus]:
    """Those that the config does not know."""
    hardware = {one.pool: one.hardware for one in alive if one.guest and one.pool not in config.pools}
    return [
        PoolStatus(
            name=name,
            hardware=hardware[name],
            state="",
            nodes="",
            roles=[
                RoleStatus(role=role, present=0, planned=0, guests=count)
                for (pool, role), count in sorted(guests.items())
                if pool == name
            ],
        )
        for name in sorted(hardware)
    ]


def _by_component(config: RunConfig) -> list[tuple[str, Any]]:
    leader = leader_pool(config)
    return [(leader, config.pools[leader]), *((name, pool) for name, pool in config.pools.items() if name != leader)]


def _alive(directory: Path, running: AttemptRecord | None) -> list[MemberRecord]:
    """Live workers, as the leader recorded them."""
    alive: dict[str, MemberRecord] = {}
    for record in read_members(directory, running.attempt) if running is not None else []:
        if record.event == "joined":
            alive[record.member_id] = record
        else:
            alive.pop(record.member_id, None)
    return list(alive.values())


def _present(config: RunConfig, alive: Sequence[MemberRecord]) -> Counter[tuple[str, str]]:
    """Planned workers that live, by pool and role."""
    pools = {plan.member_id: plan.pool for plan in plan_workers(config)}
    return Counter((pools[one.member_id], one.role) for one in alive if one.member_id in pools)


def _guests(alive: Sequence[MemberRecord]) -> Counter[tuple[str, str]]:
    """The others, by pool and role."""
    return Counter((one.pool, one.role) for one in alive if one.guest)
