"""The workers that one process adds to one attempt: started, started again, told to leave, and ended with it.

Consumes exits of its children, the leader's END, and stop signals of this process; produces the workers, which are
guests of the run (`rollart_hpc.data_plane.worker_process`); waits for their ends; woken by each of these. Whatever
happens, they have ended when `run` returns, and the members see the end of one that was killed at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

from nats.errors import Error as NatsError

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, expel
from rollart_hpc.data_plane.stop_signals import STOP_SIGNALS
from rollart_hpc.data_plane.stopping import hear_end
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.data_plane.worker_process import LEAVE_DEADLINE_S
from rollart_hpc.errors import BusError
from rollart_hpc.launcher.expelled import end_expelled
from rollart_hpc.launcher.failure import failure_of
from rollart_hpc.launcher.plan import WorkerPlan
from rollart_hpc.launcher.restarts import MAX_RESTARTS, Restarts
from rollart_hpc.launcher.stop_request import comes_within
from rollart_hpc.processes import ManagedProcess, compute_environment, describe_exit, ending_signal
from rollart_hpc.slurm.commands import clean_environment

_END_GRACE_S = 8.0
"""For the workers to end once the attempt has."""
_TOGETHER_S = 1.0
"""The end of an attempt is heard by its workers and by this process within this time."""
_LEAVE_MARGIN_S = 6.0
"""Beyond what a worker has for leaving: for its close."""


StartGuest = Callable[[str, Sequence[str], Path, WorkerPlan], Awaitable[ManagedProcess]]
"""As `rollart_hpc.launcher.starters.Starter.start`, of this process's children."""


class GuestsEnd(Enum):
    """Why there are no guests any more."""

    ATTEMPT_IS_OVER = auto()
    TOLD = auto()
    """This process was told to stop."""
    LEFT = auto()
    """Each of them was told to stop."""


class Guests:
    """Call `run` once."""

    def __init__(
        self,
        attempt: Attempt,
        plans: Sequence[WorkerPlan],
        bus: Bus,
        *,
        start: StartGuest,
        told: asyncio.Event,
        note: Callable[[str], None],
        age_s: Callable[[], float],
    ) -> None:
        """Takes what it needs.

        Args:
            attempt: to join.
            plans: the workers.
            bus: of the attempt.
            start: starts the process of each.
            told: is set when they shall leave.
            note: is told what a user wants to know.
            age_s: seconds since the workers were asked for.
        """
        self._attempt, self._bus, self._told, self._note, self._age_s = attempt, bus, told, note, age_s
        self._plans, self._start_guest = {plan.member_id: plan for plan in plans}, start
        self._processes: dict[str, ManagedProcess] = {}
        self._served: set[str] = set()
        self._restarted_at: dict[str, float] = {}
        self._over = asyncio.Event()
        self._restarts = Restarts()

    async def run(self) -> GuestsEnd:
        """Starts the workers and keeps them until the attempt is over or they are to leave.

        Raises:
            AttemptFailedError: one of them has failed too often; the others have left.
        """
        self._over = over = await hear_end(self._bus)
        lost = asyncio.ensure_future(self._bus.nc.wait_lost())
        leaving = True
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(
                    end_expelled(self._bus, self._processes, note=self._note, listener=self._member_changed)
                )
                keepers = [group.create_task(self._keep(plan)) for plan in self._plans.values()]
                left = asyncio.ensure_future(asyncio.wait(keepers))
                causes = {
                    asyncio.ensure_future(over.wait()): GuestsEnd.ATTEMPT_IS_OVER,
                    lost: GuestsEnd.ATTEMPT_IS_OVER,
                    asyncio.ensure_future(self._told.wait()): GuestsEnd.TOLD,
                    left: GuestsEnd.LEFT,
                }
                try:
                    done, _ = await asyncio.wait(causes, return_when=asyncio.FIRST_COMPLETED)
                    end = causes[done.pop()]
                    if end is GuestsEnd.LEFT and await comes_within(over, _TOGETHER_S):
                        end = GuestsEnd.ATTEMPT_IS_OVER
                    leaving = end is GuestsEnd.TOLD
                finally:
                    for waiting in (*causes, *keepers, watching):
                        waiting.cancel()
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None
        finally:
            await self._end_all(leaving=leaving)
        return end

    async def _keep(self, plan: WorkerPlan) -> None:
        """Starts a worker again when it dies; returns when it was told to stop itself."""
        while True:
            process = self._processes[plan.member_id] = await self._start(plan)
            code = await process.wait()
            if code == 0:
                if not await comes_within(self._over, _TOGETHER_S):
                    self._note(f"{plan.member_id} has left")
                return
            await self._expel(plan.member_id)
            if ending_signal(code) in STOP_SIGNALS and not process.is_killed:
                self._note(self._last_words(plan.member_id, code))
                return
            if not self._restarts.add(plan.member_id):
                addition = f", after {MAX_RESTARTS} restarts"
                raise failure_of(process, code, self._attempt.failures, addition=addition)
            self._note(f"{plan.member_id} ended with {describe_exit(code)}; starting it again")
            self._restarted_at[plan.member_id] = time.monotonic()

    async def _start(self, plan: WorkerPlan) -> ManagedProcess:
        name, directory = plan.member_id, self._attempt.directory
        command = plan.command(directory / "attempt.json")
        return await self._start_guest(name, command, directory / "logs" / f"{name}.log", plan)

    async def _expel(self, member_id: str) -> None:
        """Lets others know at once of the end of a worker that could not say so; nothing when it did."""
        try:
            await expel(self._bus, member_id)
        except (BusError, NatsError, TimeoutError) as error:
            self._note(f"{member_id} stays a member until its time is over: {error!r}")

    async def _end_all(self, *, leaving: bool) -> None:
        """Ends what still runs: by asking when it shall leave, else it has heard the end of the attempt itself."""
        running = [process for process in self._processes.values() if process.exit_code is None]
        if leaving:
            for process in running:
                process.request_stop()
        grace_s = LEAVE_DEADLINE_S + _LEAVE_MARGIN_S if leaving else _END_GRACE_S
        codes = await asyncio.gather(*(process.end(grace_s) for process in running))
        for process, code in zip(running, codes, strict=True):
            if not leaving:
                continue
            if code == 0:
                self._note(f"{process.name} has left")
            else:
                self._note(self._last_words(process.name, code))
                await self._expel(process.name)

    def _member_changed(self, before: Member | None, after: Member | None) -> None:
        if after is None or after.member_id not in self._plans:
            return
        if before is None or before.incarnation != after.incarnation:
            self._served.add(after.member_id)
            again = self._restarted_at.get(after.member_id)
            since = "it was asked for" if again is None else "its end"
            age_s = self._age_s() if again is None else time.monotonic() - again
            self._note(f"{after.member_id} serves{'' if again is None else ' again'}, {age_s:.1f} s after {since}")

    def _last_words(self, member_id: str, code: int) -> str:
        """Of a worker that was told to stop and was killed by that."""
        if member_id in self._served:
            return f"{member_id} did not leave in order: {describe_exit(code)}"
        return f"{member_id} ended before it served"


def guest_starter(devices: Sequence[str]) -> StartGuest:
    """Starts guests as children; ``devices`` is each one's CUDA_VISIBLE_DEVICES, empty where they are told none."""

    async def start(name: str, command: Sequence[str], log: Path, plan: WorkerPlan) -> ManagedProcess:
        environment = guest_environment(os.environ, devices[plan.index] if devices else None)
        return await ManagedProcess.start(name, command, log=log, environment=environment)

    return start


def guest_environment(base: Mapping[str, str], devices: str | None) -> dict[str, str]:
    """The environment of a worker: without the surrounding job's variables, but with its node and its own devices.

    What a library reads of Slurm (ranks, sizes) is about that job's tasks, not about this worker.
    """
    environment = compute_environment(clean_environment(base))
    if node := base.get("SLURMD_NODENAME"):
        environment["SLURMD_NODENAME"] = node
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = devices
    return environment
