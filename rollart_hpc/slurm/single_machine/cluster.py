"""A cluster that was started: where it is, how it is, and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from rollart_hpc.slurm.commands import clean_environment, run_slurm
from rollart_hpc.slurm.single_machine.layout import Layout
from rollart_hpc.slurm.single_machine.programs import search_path
from rollart_hpc.slurm.single_machine.record import ClusterRecord, read_record
from rollart_hpc.slurm.single_machine.stop import stop_daemons

State = Literal["up", "partly", "down"]


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual node as Slurm sees it."""

    name: str
    state: str
    gres: str
    """Such as gpu:h800:8; empty without."""


class Cluster(msgspec.Struct, frozen=True):
    """The cluster of one start. It goes on when this process ends; `stop` ends it."""

    layout: Layout
    record: ClusterRecord

    @property
    def directory(self) -> Path:
        """Where everything of the cluster is."""
        return self.layout.directory

    @property
    def slurm_conf(self) -> Path:
        """The value of SLURM_CONF that leads Slurm's commands to this cluster."""
        return self.layout.slurm_conf

    @property
    def site_profile(self) -> Path:
        """The site profile that fits this cluster."""
        return self.layout.site_profile

    def variables(self) -> dict[str, str]:
        """What a shell exports to work with this cluster."""
        return {"SLURM_CONF": str(self.slurm_conf), "ROLLART_SITE": str(self.site_profile)}

    def environment(self) -> dict[str, str]:
        """This process's environment, led to this cluster."""
        environment = clean_environment()
        # It names clusters of the site's own database.
        environment.pop("SLURM_CLUSTERS", None)
        return environment | {"PATH": search_path()} | self.variables()

    def state(self) -> State:
        """Whether all daemons run, some, or none."""
        alive = sum(daemon.alive for daemon in self.record.daemons)
        if not alive:
            return "down"
        return "up" if alive == len(self.record.daemons) else "partly"

    def run(self, program: str, *arguments: str, deadline_s: float = 30.0) -> str:
        """What a Slurm command prints on this cluster; raises as `run_slurm` does."""
        return run_slurm(program, *arguments, deadline_s=deadline_s, environment=self.environment())

    def nodes(self, deadline_s: float = 30.0) -> list[NodeState]:
        """All virtual nodes; raises SlurmError when slurmctld does not answer."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T %G", deadline_s=deadline_s).splitlines()
        # A node has a line for each of its partitions.
        rows = dict.fromkeys(tuple(line.split()) for line in lines)
        return [NodeState(name=name, state=state, gres="" if gres == "(null)" else gres) for name, state, gres in rows]

    def stop(self) -> list[str]:
        """Cancels the jobs, ends all processes, keeps the logs. Returns what did not end in order."""
        with self.layout.locked():
            return stop_daemons(self.layout, self.record, self.environment())


def read_cluster(directory: Path) -> Cluster | None:
    """The cluster in a directory, running or not; None when none was started or it was stopped.

    Raises:
        PreflightError: the record cannot be read, or the cluster belongs to someone else.
    """
    layout = Layout.of(directory)
    record = read_record(layout)
    return None if record is None else Cluster(layout, record)
