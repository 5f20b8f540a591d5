"""What Slurm says about its cluster: settings, partitions, nodes, reservations, and what the user may do.

Frozen records, made from Slurm's text by pure functions (`parse_*`). What a site hides (PrivateData) or a version
does not print is None or missing: unknown is never taken for zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollart_hpc.slurm.doctor.scontrol_output import (
    count,
    duration_s,
    gpus_by_type,
    read_fields,
    read_records,
    read_settings,
    word,
    words,
)

_UNUSABLE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG", "MAINT"}
    | {"NOT_RESPONDING", "NO_RESPOND", "PERFCTRS", "REBOOT", "REBOOT_ISSUED", "UNKNOWN"}
)
_BACKFILL_INTERVAL_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of slurm.conf that concern a run."""

    version: str
    scheduler: str
    """backfill, builtin, ..."""
    backfill_interval_s: int
    preempt_type: str
    """partition_prio, qos or none."""
    preempt_mode: str
    """Of the whole cluster; partitions and QOS may have their own."""
    user_signal: bool
    """A preempted job gets its own signal (`--signal`) at once, not only TERM."""
    kill_wait_s: int
    requeue_by_default: bool
    accounting: bool
    """sacct works."""
    enforced: frozenset[str]
    """What AccountingStorageEnforce demands: associations, limits, qos, ..."""
    max_mem_per_node_mb: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition."""

    name: str
    state: str
    default: bool
    allow_accounts: tuple[str, ...] | None
    deny_accounts: tuple[str, ...] | None
    allow_groups: tuple[str, ...] | None
    allow_qos: tuple[str, ...] | None
    deny_qos: tuple[str, ...] | None
    default_time_s: int | None
    max_time_s: int | None
    min_nodes: int
    max_nodes: int | None
    total_nodes: int
    max_cpus_per_node: int | None
    max_mem_per_node_mb: int | None
    priority_tier: int
    preempt_mode: str
    """OFF, REQUEUE, CANCEL, SUSPEND, GANG, ...; several by comma."""
    grace_s: int
    root_only: bool
    needs_reservation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node; sizes are what jobs may have of it."""

    name: str
    cpus: int
    memory_mb: int
    gpus: Mapping[str, int]
    """By GRES type; "" is a GPU without type."""
    features: frozenset[str]
    partitions: frozenset[str]
    states: frozenset[str]
    reason: str | None

    @property
    def usable(self) -> bool:
        """Jobs start here, now or when others end."""
        return not self.states & _UNUSABLE

    @property
    def num_gpus(self) -> int:
        """GPUs of all types."""
        return sum(self.gpus.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One reservation."""

    name: str
    state: str
    start: str
    duration_s: int | None
    nodes: str | None
    num_nodes: int | None
    partition: str | None
    users: tuple[str, ...] | None
    accounts: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """One quality of service, from the accounting data base."""

    name: str
    grace_s: int
    preempt_mode: str
    """In capitals; CLUSTER is the whole cluster's."""
    max_wall_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who submits; accounts and QOS are None where there is no accounting to ask."""

    name: str
    groups: frozenset[str]
    is_root: bool
    default_account: str | None = None
    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """All of it, as of one moment."""

    settings: Settings
    partitions: Mapping[str, Partition]
    nodes: Mapping[str, Node]
    """Empty where the site hides them."""
    reservations: Mapping[str, Reservation]
    user: User
    qos: Mapping[str, Qos] | None = None
    """None where there is no accounting to ask."""
    hostlists: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Node names by hostlist expression, for those of the config and of reservations."""

    def default_partition(self) -> Partition | None:
        """The one that is taken when none is named."""
        return next((partition for partition in self.partitions.values() if partition.default), None)

    def nodes_of(self, partition: str) -> list[Node]:
        """Its nodes, the unusable ones included."""
        return [node for node in self.nodes.values() if partition in node.partitions]

    def preemptors_of(self, partition: Partition) -> list[str]:
        """Partitions of a higher tier on the same nodes; when nodes are hidden, all of a higher tier."""
        shared = {name for node in self.nodes_of(partition.name) for name in node.partitions}
        higher = [other for other in self.partitions.values() if other.priority_tier > partition.priority_tier]
        return sorted(other.name for other in higher if not self.nodes or other.name in shared)


def parse_settings(text: str) -> Settings:
    """Settings of ``scontrol show config``."""
    values = read_settings(text)
    parameters = read_fields((values.get("SchedulerParameters") or "").replace(",", " "))
    interval = count(parameters, "bf_interval")
    accounting = values.get("AccountingStorageType", "")
    return Settings(
        version=values.get("SLURM_VERSION", "unknown"),
        scheduler=values.get("SchedulerType", "unknown").removeprefix("sched/"),
        backfill_interval_s=_BACKFILL_INTERVAL_S if interval is None else interval,
        preempt_type=(word(values, "PreemptType") or "none").removeprefix("preempt/"),
        preempt_mode=(word(values, "PreemptMode") or "OFF").upper(),
        user_signal="preempt_send_user_signal" in (words(values, "SlurmctldParameters") or ()),
        kill_wait_s=count(values, "KillWait") or 0,
        requeue_by_default=values.get("JobRequeue", "1") != "0",
        accounting=accounting.endswith("slurmdbd"),
        enforced=frozenset(words(values, "AccountingStorageEnforce") or ()),
        max_mem_per_node_mb=count(values, "MaxMemPerNode"),
    )


def parse_partitions(text: str) -> dict[str, Partition]:
    """Partitions of ``scontrol show partition --oneliner``."""
    return {fields["PartitionName"]: _partition(fields) for fields in read_records(text, "PartitionName")}


def _partition(fields: Mapping[str, str]) -> Partition:
    return Partition(
        name=fields["PartitionName"],
        state=fields.get("State", "UP"),
        default=fields.get("Default") == "YES",
        allow_accounts=words(fields, "AllowAccounts"),
        deny_accounts=words(fields, "DenyAccounts"),
        allow_groups=words(fields, "AllowGroups"),
        allow_qos=words(fields, "AllowQos"),
        deny_qos=words(fields, "DenyQos"),
        default_time_s=duration_s(fields, "DefaultTime"),
        max_time_s=duration_s(fields, "MaxTime"),
        min_nodes=count(fields, "MinNodes") or 1,
        max_nodes=count(fields, "MaxNodes"),
        total_nodes=count(fields, "TotalNodes") or 0,
        max_cpus_per_node=count(fields, "MaxCPUsPerNode"),
        max_mem_per_node_mb=count(fields, "MaxMemPerNode"),
        priority_tier=count(fields, "PriorityTier") or 1,
        preempt_mode=fields.get("PreemptMode", "OFF").upper(),
        grace_s=count(fields, "GraceTime") or 0,
        root_only=fields.get("RootOnly") == "YES",
        needs_reservation=fields.get("ReqResv") == "YES",
    )


def parse_nodes(text: str) -> dict[str, Node]:
    """Nodes of ``scontrol show node --oneliner``."""
    return {fields["NodeName"]: _node(fields) for fields in read_records(text, "NodeName")}


def _node(fields: Mapping[str, str]) -> Node:
    total = count(fields, "CPUTot") or 0
    effective = count(fields, "CPUEfctv")
    states = re.split(r"\+", re.sub(r"[^A-Z_+]", "", fields.get("State", "UNKNOWN").upper()))
    return Node(
        name=fields["NodeName"],
        cpus=total if effective is None else effective,
        memory_mb=(count(fields, "RealMemory") or 0) - (count(fields, "MemSpecLimit") or 0),
        gpus=gpus_by_type(word(fields, "Gres")),
        features=frozenset(words(fields, "AvailableFeatures") or ()),
        partitions=frozenset(words(fields, "Partitions") or ()),
        states=frozenset(states),
        reason=word(fields, "Reason"),
    )


def parse_reservations(text: str) -> dict[str, Reservation]:
    """Reservations of ``scontrol show reservation --oneliner``."""
    return {
        fields["ReservationName"]: Reservation(
            name=fields["ReservationName"],
            state=fields.get("State", "UNKNOWN"),
            start=fields.get("StartTime", "unknown"),
            duration_s=duration_s(fields, "Duration"),
            nodes=word(fields, "Nodes"),
            num_nodes=count(fields, "NodeCnt"),
            partition=word(fields, "PartitionName"),
            users=words(fields, "Users"),
            accounts=words(fields, "Accounts"),
        )
        for fields in read_records(text, "ReservationName")
    }


def parse_qos(text: str) -> dict[str, Qos]:
    """QOS of ``sacctmgr -nP show qos format=Name,GraceTime,PreemptMode,MaxWall``."""
    return {
        name: Qos(
            name=name,
            grace_s=duration_s({"GraceTime": grace}, "GraceTime") or 0,
            preempt_mode=mode.upper(),
            max_wall_s=duration_s({"MaxWall": wall}, "MaxWall"),
        )
        for name, grace, mode, wall in _rows(text, 4)
    }


def parse_associations(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Accounts and QOS of ``sacctmgr -nP show assoc user=NAME format=Account,QOS``."""
    rows = list(_rows(text, 2))
    return frozenset(row[0] for row in rows), frozenset(name for row in rows for name in row[1].split(",") if name)


def _rows(text: str, columns: int) -> Sequence[list[str]]:
    rows = [line.split("|") for line in text.splitlines()]
    return [row for row in rows if len(row) == columns and row[0]]
