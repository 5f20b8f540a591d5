"""The leader on one machine: starts every process of an attempt, watches them, ends them all (no Slurm).

Consumes exits of its children; produces the processes, restarts of replaceable workers and the attempt's end;
waits for the controller's exit; woken by any child's exit or by a signal. Whatever happens, every process that it
started has ended when `run_attempt` returns, within `_STOP_BUDGET_S` of the first cause.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView, expel
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import BusError, RollartError
from rollart_hpc.launcher.plan import CONTROLLER, WorkerPlan, controller_command, plan_workers
from rollart_hpc.launcher.progress import ProgressView
from rollart_hpc.launcher.services import Services, run_services
from rollart_hpc.observe.failures import read_failure
from rollart_hpc.processes import ManagedProcess, compute_environment, describe_exit

_log = logging.getLogger(__name__)
_WORKER_GRACE_S = 5.0
_EXPELLED_GRACE_S = 15.0
"""What a worker has for ending by itself after it lost its membership."""
_MAX_RESTARTS = 5
_RESTART_WINDOW_S = 900.0
"""A worker that was started again so often within this time has a fault of its own."""


class AttemptFailedError(RollartError):
    """An attempt ended before its run was done; the text says what ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended."""

    stopped: bool
    """It was asked to stop; the run can be resumed."""
    restarts: dict[str, int]


class LocalLeader:
    """Runs one attempt."""

    def __init__(self, config: RunConfig, attempt_number: int, view: ProgressView) -> None:
        self._config, self._number, self._view = config, attempt_number, view
        self._directory = config.run.path() / "attempts" / str(attempt_number)
        self._logs = self._directory / "logs"
        self._stop = asyncio.Event()
        self._workers: dict[str, ManagedProcess] = {}
        self._restarts: defaultdict[str, list[float]] = defaultdict(list)
        self._bus: Bus | None = None

    def request_stop(self) -> None:
        """Asks for an orderly end: the controller saves at the next step boundary."""
        self._stop.set()

    async def run_attempt(self) -> AttemptEnd:
        """Runs to the end.

        Raises:
            AttemptFailedError: the controller, a trainer rank or a service ended.
            RollartError: a service did not start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            loop.add_signal_handler(number, self.request_stop)
        async with run_services(self._config, self._logs) as services:
            attempt_file = self._write_attempt(services)
            self._bus = await Bus.connect(services.nats.endpoint, "leader")
            try:
                await self._view.follow(self._bus)
                return await self._run_processes(services, attempt_file)
            finally:
                await self._bus.close()

    def _write_attempt(self, services: Services) -> Path:
        attempt = Attempt(
            run_directory=str(self._config.run.path()),
            number=self._number,
            bus=services.nats.endpoint,
            store=services.master.endpoint,
            config=self._config.model_dump(mode="json"),
        )
        return attempt.write()

    async def _run_processes(self, services: Services, attempt_file: Path) -> AttemptEnd:
        controller = await self._start(CONTROLLER, controller_command(attempt_file))
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(_watch_service(process)) for process in services.processes]
                watchers.append(group.create_task(self._end_expelled()))
                for plan in plan_workers(self._config):
                    self._workers[plan.member_id] = await self._start(plan.member_id, plan.command(attempt_file))
                    watchers.append(group.create_task(self._keep_alive(plan, attempt_file)))
                stopping = group.create_task(self._forward_stop(controller))
                code = await controller.wait()
                for task in (*watchers, stopping):
                    task.cancel()
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None
        finally:
            await self._end_all(controller)
        if code == -signal.SIGTERM and self._stop.is_set():
            _log.info("the controller was stopped before it had begun")
        elif code != 0:
            raise AttemptFailedError(f"the controller ended with {describe_exit(code)}:\n{self._reason(controller)}")
        return AttemptEnd(
            stopped=self._stop.is_set(), restarts={name: len(times) for name, times in self._restarts.items()}
        )

    async def _forward_stop(self, controller: ManagedProcess) -> None:
        await self._stop.wait()
        self._view.note("stopping: saving at the next step boundary")
        controller.send(signal.SIGTERM)
        await asyncio.sleep(self._config.run.stop_timeout_s)
        raise AttemptFailedError(
            f"the controller did not stop within {self._config.run.stop_timeout_s:g} s (run.stop_timeout_s) and was "
            "killed; what was trained since the last checkpoint is trained again on resume"
        )

    async def _keep_alive(self, plan: WorkerPlan, attempt_file: Path) -> None:
        """Starts a replaceable worker again when it ends; ends the attempt for any other."""
        while True:
            process = self._workers[plan.member_id]
            code = await process.wait()
            cause = f"{plan.member_id} ended with {describe_exit(code)}"
            if not plan.is_replaceable:
                raise AttemptFailedError(f"{cause}:\n{self._reason(process)}")
            self._restarts[plan.member_id].append(time.monotonic())
            recent = [at for at in self._restarts[plan.member_id] if at > time.monotonic() - _RESTART_WINDOW_S]
            if len(recent) > _MAX_RESTARTS:
                raise AttemptFailedError(f"{cause}, after {_MAX_RESTARTS} restarts:\n{self._reason(process)}")
            self._view.note(f"{cause}; starting it again")
            await self._expel(plan.member_id)
            self._workers[plan.member_id] = await self._start(plan.member_id, plan.command(attempt_file))

    async def _end_expelled(self) -> None:
        """Kills a worker that is no member any more and does not end by itself: it hangs."""
        if self._bus is None:
            return
        view = MemberView(self._bus)

        async def end(member: Member) -> None:
            await asyncio.sleep(_EXPELLED_GRACE_S)
            process = self._workers.get(member.member_id)
            is_same = process is not None and process.pid == member.pid and process.exit_code is None
            if process is not None and is_same and view.get(member.member_id) is None:
                self._view.note(f"{member.member_id} is no member any more and does not end; it is killed")
                process.send(signal.SIGKILL)

        async with asyncio.TaskGroup() as group:

            def changed(before: Member | None, after: Member | None) -> None:
                if before is not None and after is None:
                    group.create_task(end(before))

            view.listen(changed)
            await view.run()

    async def _expel(self, member_id: str) -> None:
        if self._bus is None:
            return
        try:
            await expel(self._bus, member_id)
        except (BusError, TimeoutError) as error:
            _log.warning("%s stays a member until its time is over: %s", member_id, error)

    def _reason(self, process: ManagedProcess) -> str:
        """What the process wrote about its failure, else the end of its log."""
        return read_failure(self._directory / "failures", process.name) or process.tail()

    async def _start(self, name: str, command: list[str]) -> ManagedProcess:
        environment = compute_environment(os.environ)
        return await ManagedProcess.start(name, command, log=self._logs / f"{name}.log", environment=environment)

    async def _end_all(self, controller: ManagedProcess) -> None:
        """Ends controller and workers, all at once."""
        processes = [controller, *self._workers.values()]
        await asyncio.gather(*(process.stop(_WORKER_GRACE_S) for process in processes))


async def _watch_service(process: ManagedProcess) -> None:
    code = await process.wait()
    raise AttemptFailedError(f"{process.name} ended with {describe_exit(code)}:\n{process.tail()}")
