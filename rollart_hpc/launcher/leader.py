"""The leader: starts every process of an attempt, watches them, ends them all.

Consumes exits of its children and notices on the bus; produces the processes, restarts of replaceable workers and of
services, and the attempt's end; waits for the controller's exit; woken by any child's exit or by a request to stop.
Where the processes run is the starter's business. Whatever happens, every process that it started has ended when
`run_attempt` returns, within the starter's grace and 10 s of the first cause.

A process that a stop signal killed was told before it could hear: that is a notice, not a fault. While the run stops
nothing is started again but services: what a worker that ended then had to save is lost, the rest is saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nats.aio.msg import Msg

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, expel
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.stop_signals import EXIT_STOPPED, STOP_SIGNALS
from rollart_hpc.data_plane.stopping import Notice, hear_notices, say_again
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import BusError, ConfigError, RollartError
from rollart_hpc.launcher.attempt_log import GIVEN_UP, AttemptLog
from rollart_hpc.launcher.expelled import end_expelled
from rollart_hpc.launcher.failure import AttemptFailedError, failure_of
from rollart_hpc.launcher.fault_injection import FaultInjector, FaultPlan, read_fault_plan
from rollart_hpc.launcher.plan import CONTROLLER, WorkerPlan, controller_command, plan_workers
from rollart_hpc.launcher.pool_keeper import PoolKeeper
from rollart_hpc.launcher.progress import ProgressView
from rollart_hpc.launcher.restarts import MAX_RESTARTS, Restarts
from rollart_hpc.launcher.services import Services, run_services
from rollart_hpc.launcher.silent_controller import end_when_silent
from rollart_hpc.launcher.starters import Starter
from rollart_hpc.launcher.stop_request import StopRequest
from rollart_hpc.observe.metrics import read_summary
from rollart_hpc.processes import ManagedProcess, describe_exit, ending_signal
from rollart_hpc.weights.store import StoreLoss

_log = logging.getLogger(__name__)
_TOGETHER_S = 1.0
"""Signals that come within this time were sent by one command."""
_SAY_LOSS_S = 5.0
"""So long that nobody misses it who was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended that did not fail."""

    stopped: bool
    """It was asked to stop; the run can be resumed."""
    saved_s: float | None = None
    """From the notice until everything was saved; None when it was not."""
    cause: str = ""
    """Why nothing was saved by the stop."""


class Leader:
    """Runs one attempt."""

    def __init__(
        self,
        config: RunConfig,
        attempt_number: int,
        starter: Starter,
        view: ProgressView,
        log: AttemptLog,
        stop: StopRequest,
        *,
        on_failure: Callable[[Exception, dict[str, int]], None],
    ) -> None:
        """``on_failure`` is told the first failure as soon as it is known, and what was started again until then."""
        self._config, self._number = config, attempt_number
        self._starter, self._view, self._log, self._stop = starter, view, log, stop
        self._on_failure = on_failure
        self._directory = config.run.path() / "attempts" / str(attempt_number)
        self._logs, self._failures = self._directory / "logs", self._directory / "failures"
        self._workers: dict[str, ManagedProcess] = {}
        self._controllers: list[ManagedProcess] = []
        self._fault_plan = read_fault_plan(config.run.path())
        self._restarts = Restarts()
        self._began = time.monotonic()
        self._has_progressed = self._has_failed = False

    async def run_attempt(self) -> AttemptEnd:
        """Runs to the end and records it, except a failure.

        Raises:
            AttemptFailedError: the controller, a trainer rank or a service ended.
            RollartError: a service did not start.
        """
        try:
            end = await self._serve_and_run()
        except Exception as error:
            self._failed(error)
            raise
        self._log.write(
            "stopped" if end.stopped else "done",
            cause=end.cause,
            saved_s=end.saved_s,
            restarts=self._restarts.counts(),
        )
        return end

    def _failed(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._on_failure(error, self._restarts.counts())

    async def _serve_and_run(self) -> AttemptEnd:
        if self._stop.is_set:
            return AttemptEnd(stopped=True, cause="it was to stop before it began")
        async with run_services(self._config, self._logs, self._starter.host) as services:
            attempt_file = self._write_attempt(services)
            bus = await Bus.connect(services.nats.endpoint, "leader")
            try:
                await self._view.follow(bus)
                await bus.subscribe(subjects.PROGRESS, self._progressed)
                await hear_notices(bus, self._noticed)
                bus.on_lame_duck(services.nats.kill)
                if self._fault_plan is not None:
                    await self._inject_faults(bus, services, self._fault_plan)
                return await self._run_processes(bus, services, attempt_file)
            finally:
                await bus.close()

    def _write_attempt(self, services: Services) -> Path:
        attempt = Attempt(
            run_directory=str(self._config.run.path()),
            number=self._number,
            bus=services.nats.endpoint,
            store=services.master.endpoint,
            config=self._config.model_dump(mode="json"),
            announces=self._fault_plan is not None,
            model=self._model(),
        )
        return attempt.write()

    def _model(self) -> dict[str, str]:
        """What a process that joins the run must find on its machine."""
        from rollart_hpc.control_plane.model_identity import describe_model  # as for salvage

        try:
            return describe_model(self._config.model.path)
        except ConfigError as error:
            # The controller refuses it, in its own words.
            _log.warning("workers that join the run are not held to its model: %s", error)
            return {}

    async def _inject_faults(self, bus: Bus, services: Services, plan: FaultPlan) -> None:
        def processes() -> dict[str, ManagedProcess]:
            return {**self._workers, **{process.name: process for process in (*self._controllers, *services.processes)}}

        injector = FaultInjector(self._config.run.path(), plan, self._number, processes, self._view.note)
        await injector.listen(bus)

    def _noticed(self, notice: Notice) -> None:
        self._stop.request(f"{notice.who}: {notice.reason}", notice.at)

    async def _progressed(self, _: Msg) -> None:
        if not self._has_progressed:
            self._has_progressed = True
            self._log.write("first_step", first_step_s=time.monotonic() - self._began)

    async def _run_processes(self, bus: Bus, services: Services, attempt_file: Path) -> AttemptEnd:
        pools = PoolKeeper(self._config, plan_workers(self._config), bus)
        await pools.join()
        controller = await self._start(CONTROLLER, controller_command(attempt_file), None)
        self._controllers.append(controller)
        keepers = [asyncio.ensure_future(one) for one in (self._keep_bus(services), self._keep_store(bus, services))]
        try:
            code = await self._watch(bus, controller, keepers, pools, attempt_file)
            end = self._judge(controller, code)
            if end.stopped:
                self._log.write("saved", saved_s=end.saved_s, cause=end.cause)
            return end
        except RollartError as error:
            is_stop = await self._stop.comes_within(_TOGETHER_S)
            if not is_stop:
                self._failed(error)
            await self._salvage(bus, controller)
            if is_stop:
                return AttemptEnd(stopped=True, cause=str(error))
            raise
        finally:
            await self._end_all(bus, controller)
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)

    async def _salvage(self, bus: Bus, controller: ManagedProcess) -> None:
        """The controller did not end in order: what came back and what is being played must not be lost with it."""
        from rollart_hpc.control_plane.salvage import salvage  # imports what a leader needs only here

        controller.kill()
        await controller.end(self._starter.grace_s)
        if saved := await salvage(bus, self._config.run.path()):
            self._view.note(f"saved {saved} trajectories that had come back or were being played")

    async def _watch(
        self,
        bus: Bus,
        controller: ManagedProcess,
        keepers: Sequence[asyncio.Future[None]],
        pools: PoolKeeper,
        attempt_file: Path,
    ) -> int:
        """Keeps everything alive until the controller ends; its exit code. The services' keepers go on after it."""

        def member_changed(before: Member | None, after: Member | None) -> None:
            self._log.member_changed(before, after)
            pools.member_changed(before, after)

        try:
            async with asyncio.TaskGroup() as group:
                watchers = [
                    *(group.create_task(_failure_of_keeper(keeper)) for keeper in keepers),
                    group.create_task(end_expelled(bus, self._workers, note=self._view.note, listener=member_changed)),
                    group.create_task(pools.run()),
                    group.create_task(self._forward_stop(bus, controller)),
                    group.create_task(end_when_silent(bus, controller)),
                ]
                for plan in plan_workers(self._config):
                    self._workers[plan.member_id] = await self._start_worker(plan, attempt_file)
                    watchers.append(group.create_task(self._keep_worker(bus, plan, pools, attempt_file)))
                code = await controller.wait()
                for task in watchers:
                    task.cancel()
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None
        return code

    def _judge(self, controller: ManagedProcess, code: int) -> AttemptEnd:
        """What the controller's end means: done, stopped in order, or an error."""
        if code == 0 and self._is_done():
            return AttemptEnd(stopped=False)
        self._heed(controller, code)
        if code == EXIT_STOPPED:
            self._stop.request(f"{CONTROLLER} stopped")
            return AttemptEnd(stopped=True, saved_s=time.time() - self._stop.at)
        # srun may end with 0 when its node is lost.
        raise failure_of(controller, code, self._failures, addition=" before the run was done" if code == 0 else "")

    def _is_done(self) -> bool:
        """Whether this attempt's controller wrote that every step is trained."""
        summary = read_summary(self._config.run.path())
        return summary.get("attempt") == self._number and summary["steps"] >= self._config.run.steps

    def _heed(self, process: ManagedProcess, code: int) -> None:
        """A process that was told to stop before it could listen: the run is to stop."""
        killer = ending_signal(code)
        if killer is not None and killer in STOP_SIGNALS and not process.is_killed:
            self._stop.request(f"{process.name}: {killer.name}")

    async def _forward_stop(self, bus: Bus, controller: ManagedProcess) -> None:
        """Tells the controller when the run is to stop, by signal and by the bus."""
        await self._stop.wait()
        controller.request_stop()
        timeout_s = self._config.run.stop_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await say_again(bus, subjects.NOTICE, Notice(who="leader", reason=self._stop.reason, at=self._stop.at))
        except TimeoutError:
            raise AttemptFailedError(
                f"the controller did not stop within {timeout_s:g} s (run.stop_timeout_s) and was killed; what was "
                "trained since the last checkpoint is trained again on resume"
            ) from None

    async def _keep_worker(self, bus: Bus, plan: WorkerPlan, pools: PoolKeeper, attempt_file: Path) -> None:
        """Starts a replaceable worker again when it ends; ends the attempt for any other.

        One that ends again and again is given up when its role has another one.
        """
        while True:
            process = self._workers[plan.member_id]
            code = await process.wait()
            self._heed(process, code)
            if self._stop.is_set:
                await self._expel(bus, plan.member_id)
                return
            if not plan.is_replaceable:
                raise failure_of(process, code, self._failures)
            try:
                self._count_restart(process, code)
            except AttemptFailedError as error:
                if not pools.can_spare(plan):
                    raise
                self._view.note(f"{error}; the run goes on without it")
                self._log.write(GIVEN_UP, cause=str(error))
                await pools.give_up(plan)
                await self._expel(bus, plan.member_id)
                return
            await self._expel(bus, plan.member_id)
            self._workers[plan.member_id] = await self._start_worker(plan, attempt_file)

    async def _keep_bus(self, services: Services) -> None:
        """Starts nats-server again where it was: nothing that is in it is lost."""
        await self._keep(services.bus_ended, services.nats.restart)

    async def _keep_store(self, bus: Bus, services: Services) -> None:
        """Starts the weight store again; the controller then has the newest weights put into it again."""

        async def restart() -> None:
            await services.restart_store()
            nonlocal number
            number += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAY_LOSS_S):
                    await say_again(bus, subjects.STORE_LOST, StoreLoss(number))

        number = 0
        await self._keep(services.store_ended, restart)

    async def _keep(
        self, ended: Callable[[], Awaitable[tuple[ManagedProcess, int]]], restart: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            process, code = await ended()
            self._count_restart(process, code)
            await restart()

    def _count_restart(self, process: ManagedProcess, code: int) -> None:
        """Says that the process is started again.

        Raises:
            AttemptFailedError: it has been too often.
        """
        if not self._restarts.add(process.name):
            raise failure_of(process, code, self._failures, addition=f", after {MAX_RESTARTS} restarts")
        self._view.note(f"{process.name} ended with {describe_exit(code)}; starting it again")

    async def _expel(self, bus: Bus, member_id: str) -> None:
        try:
            await expel(bus, member_id)
        except (BusError, TimeoutError) as error:
            _log.warning("%s stays a member until its time is over: %s", member_id, error)

    async def _start_worker(self, plan: WorkerPlan, attempt_file: Path) -> ManagedProcess:
        return await self._start(plan.member_id, plan.command(attempt_file), plan)

    async def _start(self, name: str, command: list[str], plan: WorkerPlan | None) -> ManagedProcess:
        return await self._starter.start(name, command, self._logs / f"{name}.log", plan)

    async def _end_all(self, bus: Bus, controller: ManagedProcess) -> None:
        """Tells controller and workers that it is over; what has not ended after the grace is killed."""
        saying = asyncio.ensure_future(say_again(bus, subjects.END))
        try:
            processes = [controller, *self._workers.values()]
            await asyncio.gather(*(process.end(self._starter.grace_s) for process in processes))
        finally:
            saying.cancel()


async def _failure_of_keeper(keeper: asyncio.Future[None]) -> None:
    """Raises what the keeper raises; may be cancelled without it."""
    await asyncio.shield(keeper)
