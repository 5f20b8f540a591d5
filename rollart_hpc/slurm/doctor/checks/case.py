"""What the checks look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.slurm.doctor.cluster_facts import ClusterFacts, Partition
from rollart_hpc.slurm.doctor.machine_facts import MachineFacts
from rollart_hpc.slurm.doctor.node_report import Probe
from rollart_hpc.slurm.script.allocation import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run with its site's options, the cluster and the machine it would be submitted from."""

    config: RunConfig
    components: tuple[Component, ...]
    """The leader's first."""
    facts: ClusterFacts
    machine: MachineFacts
    python: Path
    """The interpreter that the processes are started with."""
    directory: Path
    """Where the run is submitted from; its processes run there."""
    probes: Mapping[str, Probe] = field(default_factory=dict[str, Probe])
    """By component; empty when nothing was probed."""
    store_mb: int | None = None
    """Memory that the weight store needs in the leader, if known."""
    last_stop_s: float | None = None
    """What the run's last stop took until everything was saved; None when it was never stopped."""

    def partitions_of(self, component: Component) -> list[Partition]:
        """The partitions that exist of those that it may run in: the named ones, else the default."""
        named = component.options.partition
        if named is None:
            default = self.facts.default_partition()
            return [] if default is None else [default]
        return [self.facts.partitions[name] for name in named.split(",") if name in self.facts.partitions]
