"""What a single-machine cluster consists of, and what may be chosen about it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from rollart_hpc.errors import ConfigError

DEFAULT_DIRECTORY = Path("~/.rollart-hpc/cluster")
Preempt = Literal["requeue", "cancel"]
_LONGEST_S = 65533
"""Slurm keeps these times in 16 bits."""


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where sites differ. The defaults are those of a site that warns before it preempts."""

    accounting: bool = True
    """slurmdbd and MariaDB, so that sacct works."""
    user_signal: bool = True
    """A preempted job is sent the signal that it asked for with --signal, at the start of its grace time."""
    grace_s: int = 10
    """From the notice of a preemption to its end; 0 ends the job at once."""
    preempt: Preempt = "requeue"
    """What becomes of a preempted job."""
    kill_wait_s: int = 5
    """From SIGTERM to SIGKILL."""

    def check(self) -> None:
        """Raises ConfigError when a time is one that Slurm cannot keep."""
        for name, value, least in (("grace", self.grace_s, 0), ("kill-wait", self.kill_wait_s, 1)):
            if not least <= value <= _LONGEST_S:
                raise ConfigError(f"{name} is {value} s; give {least} to {_LONGEST_S}")


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Virtual nodes of one class of hardware, and the partition of the same name."""

    name: str
    hardware: str
    """The hardware class in a run's pools."""
    cpus: int
    gpus: int = 0
    """Per node, of the type ``name``."""
    num_nodes: int = 2

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes."""
        return [f"{self.name}-{number}" for number in range(1, self.num_nodes + 1)]


NODE_GROUPS = (
    NodeGroup(name="h800", hardware="H800", cpus=64, gpus=8),
    NodeGroup(name="h20", hardware="H20", cpus=64, gpus=8),
    NodeGroup(name="cpu", hardware="cpu", cpus=128),
)
MEMORY_MB = 1 << 20
"""Per node, as Slurm believes; it counts memory but does not enforce it here, so requests for real nodes fit."""


def node_names() -> list[str]:
    """All virtual nodes."""
    return [node for group in NODE_GROUPS for node in group.nodes]
