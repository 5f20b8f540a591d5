"""From pools to components: how many nodes, and what each of them needs, so that every process has its share.

One pool is one component of the job. The leader's is the first, since Slurm runs the batch script on the first node of
the first component. Everything here expects a config whose options `rollart_hpc.config.site.apply_site` resolved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rollart_hpc.config.faults import nearest
from rollart_hpc.config.schema import PoolSection, RunConfig
from rollart_hpc.config.slurm import DEFAULT_RESOURCES, ComponentOptions, ResourcesSection, StepRole
from rollart_hpc.errors import ConfigError

WORKER_ROLES: tuple[StepRole, ...] = ("actor_train", "actor_gen", "environment", "reward")
_LEADING_ROLES: tuple[StepRole, ...] = ("leader", "controller")
_MB_PER_GB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process gets of its node, or what one node must have."""

    cpus: int
    mem_mb: int
    gpus: int

    def __add__(self, other: Share) -> Share:
        return Share(cpus=self.cpus + other.cpus, mem_mb=self.mem_mb + other.mem_mb, gpus=self.gpus + other.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component of the job: equal nodes for the workers of one pool."""

    name: str
    """The pool's."""
    hardware: str
    options: ComponentOptions
    nodes: int
    cpus: int
    """Per node, as mem_mb and gpus."""
    mem_mb: int
    gpus: int


def components(config: RunConfig) -> list[Component]:
    """The job's components, the leader's first; a pool without workers is none, unless the leader runs there.

    Raises:
        ConfigError: a node would have no worker, or a node's request is below what its processes get; every fault is
            listed, one a line.
    """
    leader = leader_pool(config)
    others = [name for name, pool in config.pools.items() if name != leader and _num_workers(pool)]
    names = [leader, *others]
    faults = [fault for name in names for fault in _faults(config, name)]
    if faults:
        raise ConfigError("\n".join(faults))
    return [_component(config, name) for name in names]


def leader_pool(config: RunConfig) -> str:
    """The pool on whose first node the leader and the controller run: the first one without GPU workers.

    Raises:
        ConfigError: ``slurm.leader`` names no pool.
    """
    wanted = config.slurm.leader
    if wanted is not None:
        if wanted not in config.pools:
            known = list(config.pools)
            raise ConfigError(
                f"slurm.leader = {wanted!r}: no such pool; {nearest(wanted, known)}expected one of {', '.join(known)}"
            )
        return wanted
    staffed = {name: pool for name, pool in config.pools.items() if _num_workers(pool)}
    cheap = (name for name, pool in staffed.items() if not pool.actor_train and not pool.actor_gen)
    return next(cheap, next(iter(staffed)))


def share_of(config: RunConfig, pool: str, role: StepRole) -> Share:
    """What one process of a role gets in a pool: its own resources, where they are not set the defaults."""
    default = DEFAULT_RESOURCES[role]
    own = config.pools[pool].slurm.resources.get(role, ResourcesSection())
    cpus = own.cpus or default.cpus or 1
    mem_gb = own.mem_gb or default.mem_gb or 1.0
    gpus = default.gpus if own.gpus is None else own.gpus
    return Share(
        cpus=cpus,
        mem_mb=_megabytes(mem_gb),
        gpus=config.generation.tensor_parallel if gpus is None else gpus,
    )


def node_of(index: int, count: int, nodes: int) -> int:
    """The node of a role's ``index``-th of ``count`` workers: contiguous, even blocks, none larger than the first."""
    return index * nodes // count


def oddities(config: RunConfig) -> list[str]:
    """What is allowed but slow: ranks of one tensor-parallel group on several nodes."""
    size = config.training.tensor_parallel
    places = list(_trainer_places(config))
    spanning = sum(len(set(places[start : start + size])) > 1 for start in range(0, len(places), size))
    if not spanning:
        return []
    return [
        f"training.tensor_parallel = {size}: {spanning} of {len(places) // size} groups span nodes, and every layer "
        "waits for their network; give each node a multiple of it by pools.NAME.slurm.nodes and pools.NAME.actor_train"
    ]


def _trainer_places(config: RunConfig) -> Iterator[tuple[str, int]]:
    """Pool and node of every trainer rank, in the order of the ranks."""
    for name, pool in config.pools.items():
        for index in range(pool.actor_train):
            yield name, node_of(index, pool.actor_train, num_nodes(pool))


def num_nodes(pool: PoolSection) -> int:
    """Nodes of the pool's component."""
    return pool.slurm.nodes or 1


def gigabytes(size_mb: int) -> str:
    """GiB as people write them: no exponent, no zeros at the end."""
    return f"{size_mb / _MB_PER_GB:.3f}".rstrip("0").rstrip(".")


def _component(config: RunConfig, name: str) -> Component:
    pool = config.pools[name]
    needed, options = _needed(config, name), pool.slurm
    if name == leader_pool(config) and options.licenses is None:
        options = options.model_copy(update={"licenses": config.slurm.licenses})
    return Component(
        name=name,
        hardware=pool.hardware,
        options=options,
        nodes=num_nodes(pool),
        cpus=options.cpus_per_node or needed.cpus,
        mem_mb=_megabytes(options.mem_gb) if options.mem_gb is not None else needed.mem_mb,
        gpus=needed.gpus,
    )


def _needed(config: RunConfig, name: str) -> Share:
    """What each node must have: what the first one's processes get, since it has the most of every role."""
    pool = config.pools[name]
    on_first: list[StepRole] = []
    if name == leader_pool(config):
        on_first.extend(_LEADING_ROLES)
    for role in WORKER_ROLES:
        count = _count(pool, role)
        on_first.extend(role for index in range(count) if node_of(index, count, num_nodes(pool)) == 0)
    return sum((share_of(config, name, role) for role in on_first), Share(cpus=0, mem_mb=0, gpus=0))


def _faults(config: RunConfig, name: str) -> Iterator[str]:
    pool = config.pools[name]
    nodes = num_nodes(pool)
    counts = {role: _count(pool, role) for role in WORKER_ROLES if _count(pool, role)}
    if nodes > max(counts.values(), default=1):
        staff = ", ".join(f"{role} = {count}" for role, count in counts.items()) or "no workers"
        yield (
            f"pools.{name}.slurm.nodes = {nodes}: {staff} leave a node without any worker; lower nodes, or give one "
            f"role {nodes} workers"
        )
        return
    needed, options = _needed(config, name), pool.slurm
    if options.cpus_per_node is not None and options.cpus_per_node < needed.cpus:
        yield _too_small(name, "cpus_per_node", f"{options.cpus_per_node}", f"{needed.cpus}")
    if options.mem_gb is not None and _megabytes(options.mem_gb) < needed.mem_mb:
        yield _too_small(name, "mem_gb", gigabytes(_megabytes(options.mem_gb)), gigabytes(needed.mem_mb))


def _too_small(pool: str, option: str, got: str, needed: str) -> str:
    resource = "mem_gb" if option == "mem_gb" else "cpus"
    return (
        f"pools.{pool}.slurm.{option} = {got}: the processes of one node get {needed}; raise it or leave it out, or "
        f"lower {resource} in pools.{pool}.slurm.resources.ROLE"
    )


def _num_workers(pool: PoolSection) -> int:
    return sum(_count(pool, role) for role in WORKER_ROLES)


def _count(pool: PoolSection, role: StepRole) -> int:
    return int(getattr(pool, role))


def _megabytes(gigabytes: float) -> int:
    return math.ceil(gigabytes * _MB_PER_GB)
