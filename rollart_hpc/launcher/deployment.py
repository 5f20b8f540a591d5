"""Workers for a script or a notebook, without a run: `deploy` (paper sections 5.1 to 5.3).

    async with deploy("run.toml") as deployment:
        gen = await deployment.cluster(HeteroActorGen, ResourceManager({"H800": [0]}, {"H20": [1]}))
        tokens = await gen.generate(prompt, tag_name="FrozenLake")

The workers are processes of this machine with a bus of their own; there is no controller and no weight store. All that
was started has ended when the block does, whatever happens. A worker that ends is not started again: calls to it fail.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView, expel
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.config.load import load_config
from rollart_hpc.config.resolve import resolve
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.stopping import say_again
from rollart_hpc.data_plane.worker import Attempt, Worker
from rollart_hpc.data_plane.worker_classes import worker_class as class_of_role
from rollart_hpc.errors import BusError, RollartError, WaitTimeout, WorkerDeclarationError
from rollart_hpc.launcher.failure import failure_of
from rollart_hpc.launcher.plan import WorkerPlan
from rollart_hpc.processes import ManagedProcess, compute_environment
from rollart_hpc.resource_plane.resource_manager import Placement, ResourceManager
from rollart_hpc.temporary import OwnDirectory
from rollart_hpc.types import Role

_log = logging.getLogger(__name__)
DEFAULT_DEADLINE_S = 600.0
_GRACE_S = 5.0

W = TypeVar("W", bound=Worker)


@asynccontextmanager
async def deploy(config: RunConfig | Path | str, *, directory: Path | None = None) -> AsyncGenerator[Deployment]:
    """Starts a bus for workers of this machine; ends it and them with the block.

    Args:
        config: of a run, or its TOML file; model, generation, training and tasks count. `[workers]` does not.
        directory: where logs are kept; a temporary one when left out.

    Raises:
        ConfigError: the config is wrong.
        BusError: the bus did not start.
    """
    run_config = config if isinstance(config, RunConfig) else load_config(Path(config))
    async with AsyncExitStack() as stack:
        if directory is None:
            own = await asyncio.to_thread(OwnDirectory, "deployment")
            stack.callback(own.remove)
            directory = own.path
        logs = directory.absolute() / "attempts" / "1" / "logs"
        nats = await NatsServer.start(log=logs / "nats-server.log")
        stack.push_async_callback(nats.stop)
        bus = await Bus.connect(nats.endpoint, "deployment")
        stack.push_async_callback(bus.close)
        attempt = Attempt(
            run_directory=str(directory.absolute()),
            number=1,
            bus=nats.endpoint,
            store=None,
            config=run_config.model_dump(mode="json") | {"workers": {}},
        )
        deployment = Deployment(run_config, attempt, bus)
        stack.push_async_callback(deployment.close)
        yield deployment


class Deployment:
    """The workers of one script; made by `deploy`."""

    def __init__(self, config: RunConfig, attempt: Attempt, bus: Bus) -> None:
        self._config, self._attempt, self._bus = config, attempt, bus
        self._view = MemberView(bus)
        self._watching = asyncio.ensure_future(self._view.run())
        self._roles: set[Role] = set()
        self._processes: dict[str, ManagedProcess] = {}
        self._ends: dict[str, asyncio.Future[int]] = {}
        self._placed: list[tuple[ResourceManager, Placement]] = []

    @property
    def directory(self) -> Path:
        """``logs/`` in it has what each worker said."""
        return self._attempt.directory

    async def cluster(
        self,
        worker_class: type[W],
        resources: ResourceManager,
        *,
        count: int | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> Cluster[W]:
        """Starts the workers of one class, and waits until they serve. Trainers have the initial weights then.

        Args:
            worker_class: of generation, training or reward; one class for each role.
            resources: gives each worker its devices: one, of a generation worker ``generation.tensor_parallel``.
            count: number of workers; when left out every free device gets a generation worker, the trainer has the
                ranks of ``[training]``, and there is one reward worker.
            deadline_s: of the start.

        Raises:
            WorkerDeclarationError: worker processes cannot import the class, its role has one already, or there is
                no room for the workers.
            RollartError: a worker ended at its start; the text has its own words.
            WaitTimeout: they were not there within the deadline.
        """
        role = self._checked_role(worker_class)
        entry_point = entry_point_of(worker_class)
        attempt = msgspec.structs.replace(
            self._attempt, config=self._attempt.config | {"workers": {str(role): entry_point}}
        )
        class_of_role(attempt.run_config(), role)
        plans = list(self._plans(role, self._place(role, resources, count)))
        self._roles.add(role)
        attempt_file = attempt.write(f"{role}.json")
        for plan, device_ids in plans:
            await self._start(plan, device_ids, attempt_file)
        cluster = Cluster(worker_class, self._bus, self._view)
        await self._wait_for([plan.member_id for plan, _ in plans], role, deadline_s)
        if issubclass(worker_class, ActorTrainCls):
            await cluster.restore("")
        return cluster

    async def close(self) -> None:
        """Ends every worker, and gives the devices back; bounded."""
        saying = asyncio.ensure_future(say_again(self._bus, subjects.END))
        try:
            await asyncio.gather(*(process.end(_GRACE_S) for process in self._processes.values()))
        finally:
            for one in (saying, self._watching, *self._ends.values()):
                one.cancel()
            await asyncio.wait([saying, self._watching, *self._ends.values()])
            for resources, placement in self._placed:
                resources.release(placement)

    def _checked_role(self, worker_class: type[Worker]) -> Role:
        role = worker_class.role
        if role is Role.ENVIRONMENT:
            raise WorkerDeclarationError(
                f"{worker_class.__name__}: environment workers play what a run's controller hands out; name the class "
                "in [workers] of a run"
            )
        if role in self._roles:
            raise WorkerDeclarationError(
                f"{worker_class.__name__}: this deployment has {role} workers already; deploy() another one"
            )
        return role

    def _place(self, role: Role, resources: ResourceManager, count: int | None) -> list[Placement]:
        each = self._config.generation.tensor_parallel if role is Role.ACTOR_GEN else 1
        if role is Role.ACTOR_TRAIN:
            ranks = self._config.training.world_size
            if count not in (None, ranks):
                raise WorkerDeclarationError(f"count = {count}: the ranks of [training] are {ranks}; leave it out")
            count = ranks
        if count is None and role is Role.ACTOR_GEN:
            room = {name: len(ids) // each for name, ids in resources.free.items()}
            placements = [
                placement
                for name, number in room.items()
                if number
                for placement in resources.place(role, number, name, devices_each=each)
            ]
        else:
            placements = []
        placements = placements or resources.place(role, count or 1, devices_each=each)
        self._placed += [(resources, placement) for placement in placements]
        return placements

    def _plans(self, role: Role, placements: Sequence[Placement]) -> Iterator[tuple[WorkerPlan, tuple[int, ...]]]:
        for rank, placement in enumerate(placements):
            name = placement.hardware
            plan = WorkerPlan(
                member_id=f"{role}-{rank}", role=role, hardware=name, rank=rank, pool=name, index=rank
            )  # fmt: skip
            yield plan, placement.device_ids

    async def _start(self, plan: WorkerPlan, device_ids: Sequence[int], attempt_file: Path) -> None:
        environment = compute_environment(os.environ) | {
            # What this script can import its workers can, too.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, device_ids)),
        }
        log = self.directory / "logs" / f"{plan.member_id}.log"
        process = await ManagedProcess.start(
            plan.member_id, plan.command(attempt_file), log=log, environment=environment
        )  # fmt: skip
        self._processes[plan.member_id] = process
        self._ends[plan.member_id] = asyncio.ensure_future(self._expel_when_ended(process))

    async def _expel_when_ended(self, process: ManagedProcess) -> int:
        code = await process.wait()
        try:
            await expel(self._bus, process.name)
        except (BusError, TimeoutError) as error:
            _log.warning("%s stays a member until its time is over: %s", process.name, error)
        return code

    async def _wait_for(self, member_ids: Sequence[str], role: Role, deadline_s: float) -> None:
        joined = asyncio.ensure_future(
            self._view.wait_until(lambda: all(self._view.get(member_id) for member_id in member_ids), deadline_s)
        )
        ends = {self._ends[member_id]: self._processes[member_id] for member_id in member_ids}
        try:
            await asyncio.wait({joined, *ends}, return_when=asyncio.FIRST_COMPLETED)
            for end, process in ends.items():
                if end.done():
                    failure = failure_of(process, end.result(), self._attempt.failures)
                    raise RollartError("\n".join(filter(None, [str(failure), failure.details])))
            joined.result()
        except TimeoutError:
            missing = [member_id for member_id in member_ids if self._view.get(member_id) is None]
            raise WaitTimeout(f"{role} workers to join", ", ".join(missing), deadline_s) from None
        finally:
            joined.cancel()


def entry_point_of(worker_class: type[Any]) -> str:
    """``module:Class``, by which another process imports the class.

    Raises:
        WorkerDeclarationError: none can.
    """
    module, name = worker_class.__module__, worker_class.__qualname__
    if module == "__main__":
        raise WorkerDeclarationError(
            f"{name} is a class of the script itself, which worker processes do not run; put it into a module beside it"
        )
    if "<locals>" in name:
        raise WorkerDeclarationError(f"{module}:{name} is local to a function; define it at the top of its module")
    entry_point = f"{module}:{name}"
    if resolve(entry_point) is not worker_class:
        raise WorkerDeclarationError(f"{entry_point} names another class by now; import the module anew")
    return entry_point
