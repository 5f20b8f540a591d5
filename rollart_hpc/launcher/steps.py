"""Every process of the attempt as a step of the Slurm job that the leader is the batch script of."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.slurm import StepRole
from rollart_hpc.errors import PreflightError
from rollart_hpc.launcher.plan import WorkerPlan, plan_workers
from rollart_hpc.processes import ManagedProcess, compute_environment
from rollart_hpc.slurm.allocated import AllocatedJob, node_address
from rollart_hpc.slurm.commands import clean_environment
from rollart_hpc.slurm.script.allocation import components, node_of, num_nodes, share_of
from rollart_hpc.slurm.step import StepPlace, step_argv, with_mounts
from rollart_hpc.types import Role


class StepStarter:
    """Starts steps. The leader sees srun, which ends with its step and takes the step with it."""

    grace_s = 8.0

    def __init__(self, config: RunConfig, job: AllocatedJob) -> None:
        self._config, self._job = config, job
        self._components = {component.name: component for component in components(config)}
        self._numbers = {name: number for number, name in enumerate(self._components)}
        self.host = node_address(job.node, config.slurm.interface)
        given, asked = [len(nodes) for nodes in job.nodes], [one.nodes for one in self._components.values()]
        if given != asked:
            raise PreflightError(
                f"job {job.job_id} has {given} nodes by component, this run asks for {asked}; submit it with "
                "`rollart-hpc submit`, or the script that `rollart-hpc render` prints"
            )
        self._devices = _devices(config)

    async def start(self, name: str, command: Sequence[str], log: Path, plan: WorkerPlan | None) -> ManagedProcess:
        """Starts a step on the node of the worker's place in its pool; the controller's is the leader's node."""
        pool = next(iter(self._components)) if plan is None else plan.pool
        options = with_mounts(
            self._components[pool].options, [self._config.run.path(), self._config.model.path, Path.cwd()]
        )
        argv = step_argv(name, command, self._place(name, pool, plan), options)
        environment = compute_environment(clean_environment(os.environ))
        if self._config.slurm.interface is not None:
            for library in ("GLOO", "NCCL"):
                environment.setdefault(f"{library}_SOCKET_IFNAME", self._config.slurm.interface)
        # srun forwards USR2 to its task, and kills the task when it is told to terminate.
        return await ManagedProcess.start(
            name, argv, log=log, environment=environment, stop_signal=signal.SIGUSR2, kill_signal=signal.SIGTERM
        )

    def _place(self, name: str, pool: str, plan: WorkerPlan | None) -> StepPlace:
        component = self._numbers[pool]
        role: StepRole = "controller" if plan is None else plan.role.value
        share = share_of(self._config, pool, role)
        return StepPlace(
            job_id=self._job.job_id,
            het_group=component if self._job.is_heterogeneous else None,
            node=self._job.node if plan is None else self._job.nodes[component][node_number(self._config, plan)],
            cpus=share.cpus,
            mem_mb=share.mem_mb,
            gpus=share.gpus,
            gpu_indices=self._devices.get(name, ()),
        )


def node_number(config: RunConfig, plan: WorkerPlan) -> int:
    """On which node of its pool's component a worker runs, counted from 0."""
    pool = config.pools[plan.pool]
    return node_of(plan.index, getattr(pool, str(plan.role)), num_nodes(pool))


def _devices(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Device numbers by worker, where Slurm hands out whole nodes and does not count their GPUs."""
    used: defaultdict[tuple[str, int], int] = defaultdict(int)
    devices: dict[str, tuple[int, ...]] = {}
    for plan in plan_workers(config):
        if config.pools[plan.pool].slurm.gpu_form != "none" or plan.role not in (Role.ACTOR_TRAIN, Role.ACTOR_GEN):
            continue
        node = (plan.pool, node_number(config, plan))
        gpus = share_of(config, plan.pool, plan.role.value).gpus
        devices[plan.member_id] = tuple(range(used[node], used[node] + gpus))
        used[node] += gpus
    return devices
