"""How a process of an attempt is started: as a child of the leader here, or as a step of the Slurm job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rollart_hpc.launcher.plan import WorkerPlan
from rollart_hpc.processes import ManagedProcess, compute_environment


class Starter(Protocol):
    """Starts processes for the leader. What it returns ends with the leader, whatever happens to that."""

    host: str
    """The address on which the leader's services listen."""
    grace_s: float
    """What a process has for ending in order."""

    async def start(self, name: str, command: Sequence[str], log: Path, plan: WorkerPlan | None) -> ManagedProcess:
        """Starts a worker, or the controller when ``plan`` is None; its output goes to ``log``."""
        ...


class LocalStarter:
    """Everything on this machine, as children of the leader."""

    host = "127.0.0.1"
    grace_s = 5.0

    async def start(self, name: str, command: Sequence[str], log: Path, plan: WorkerPlan | None) -> ManagedProcess:
        """Starts a child; where it would run on a cluster does not matter here."""
        return await ManagedProcess.start(name, command, log=log, environment=compute_environment(os.environ))
