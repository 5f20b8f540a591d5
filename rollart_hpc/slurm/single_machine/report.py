"""How a cluster is, for people and for programs."""

from __future__ import annotations

import msgspec

from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.single_machine.cluster import Cluster, NodeState, State


class DaemonState(msgspec.Struct, frozen=True, kw_only=True):
    """One daemon as it is now."""

    name: str
    pid: int
    alive: bool


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of a cluster; the defaults are those of a directory where none was started."""

    directory: str
    state: State = "down"
    slurm_conf: str | None = None
    site: str | None = None
    daemons: list[DaemonState] = []
    nodes: list[NodeState] = []
    """Empty when slurmctld does not answer; ``trouble`` says why."""
    trouble: str | None = None

    def as_json(self) -> str:
        """One object."""
        return msgspec.json.encode(self).decode()

    def as_text(self) -> str:
        """Lines for a terminal."""
        daemons = [f"  {each.name:<14} " + (f"pid {each.pid}" if each.alive else "ended") for each in self.daemons]
        nodes = [f"  {each.name:<14} {each.state:<12} {each.gres}".rstrip() for each in self.nodes]
        trouble = [f"  {self.trouble}"] if self.trouble else []
        return "\n".join([f"{self.directory}: {self.state}", *daemons, *nodes, *trouble])


def report_on(cluster: Cluster) -> ClusterReport:
    """Asks the kernel for the daemons, and slurmctld for the nodes when it runs."""
    daemons = [DaemonState(name=each.name, pid=each.pid, alive=each.alive) for each in cluster.record.daemons]
    nodes: list[NodeState] = []
    trouble = None
    if any(daemon.alive for daemon in daemons if daemon.name == "slurmctld"):
        try:
            nodes = cluster.nodes()
        except SlurmError as error:
            trouble = str(error)
    return ClusterReport(
        directory=str(cluster.directory),
        state=cluster.state(),
        slurm_conf=str(cluster.slurm_conf),
        site=str(cluster.site_profile),
        daemons=daemons,
        nodes=nodes,
        trouble=trouble,
    )
