"""``rollart-hpc join``: workers from elsewhere join a running run, and the attempts that follow, until they are told.

Consumes attempts of the run, one after the other, and stop signals of this process; produces guests
(`rollart_hpc.launcher.guests`); waits for the end of each attempt, and up to 10 min for the next one; woken by the
bus and by signals. Nothing is started before everything is checked.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import psutil

from rollart_hpc.data_plane.stop_signals import StopSignals, disregard_stop_signals
from rollart_hpc.data_plane.stopping import unless_stopped
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.attempt_log import read_attempts
from rollart_hpc.launcher.guest_pool import guest_pool
from rollart_hpc.launcher.guests import Guests, GuestsEnd, StartGuest, guest_starter
from rollart_hpc.launcher.join_checks import (
    JoinRequest,
    check_machine,
    check_names,
    connect,
    devices_of,
    hardware_of,
    own_origin,
    plan_guests,
    read_newest,
)
from rollart_hpc.launcher.status import OVER, is_over, read_status
from rollart_hpc.slurm.queue.job_states import JobStates

_NEXT_ATTEMPT_S = 600.0
"""What the run has for going on with another attempt before the workers give it up."""
_BEGIN_S = 60.0
"""What a leader has for starting the services of an attempt that it has begun."""
_LOOK_EVERY_S = 0.5
_ASKED_ONCE_S = 0.0
"""A job that is neither in the queue nor in accounting is over for whoever does not ask again."""


async def join_run(directory: Path, request: JoinRequest, note: Callable[[str], None]) -> None:
    """Adds workers to a run until its end, or until this process is told to stop; raises as `Join.run`.

    Args:
        directory: of the run.
        request: which workers.
        note: is told, a line at a time, what a user wants to know.
    """
    signals = StopSignals()
    try:
        await Join(directory, request, note).run(signals.told)
    finally:
        disregard_stop_signals()


class Join:
    """Adds workers to one run; call `run` once."""

    def __init__(
        self,
        directory: Path,
        request: JoinRequest,
        note: Callable[[str], None],
        start_with: Callable[[Sequence[str]], StartGuest] = guest_starter,
    ) -> None:
        """``note`` is told, a line at a time, what a user wants to know; ``start_with(devices)`` starts the workers."""
        self._directory, self._request, self._note, self._start_with = directory, request, note, start_with
        self._origin = own_origin(os.environ)
        self._asked_at = psutil.Process().create_time()

    async def run(self, told: asyncio.Event) -> None:
        """Returns when the run has ended, or when the workers have left because ``told`` was set.

        Raises:
            ConfigError: nothing can join as it was asked for; nothing was started.
            NameTakenError: the same.
            AttemptFailedError: a worker has failed too often.
        """
        await self._check_runs()
        attempt = await unless_stopped(self._wait_for_attempt(after=0, deadline_s=_BEGIN_S), told)
        if attempt is None and not told.is_set():
            raise ConfigError(
                f"{self._directory}: its leader has begun an attempt and not written, within {_BEGIN_S:g} s, where "
                "its bus is; see rollart-hpc status"
            )
        while attempt is not None:
            end = await self._serve(attempt, told)
            attempt = await self._next(attempt, told) if end is GuestsEnd.ATTEMPT_IS_OVER else None

    async def _check_runs(self) -> None:
        states = JobStates(vanished_after_s=_ASKED_ONCE_S)
        status = await asyncio.to_thread(read_status, self._directory, states)
        if status.state != "running":
            why = status.cause.partition("\n")[0] or status.reason
            raise ConfigError(
                f"{self._directory}: the run is {status.state}{f' ({why})' if why else ''}; workers join one that runs"
            )

    async def _wait_for_attempt(self, *, after: int, deadline_s: float) -> Attempt | None:
        """The newest attempt once it is one after ``after``; None when the run is over, or at the deadline."""
        deadline, states = time.monotonic() + deadline_s, JobStates()
        while time.monotonic() < deadline:
            attempt = read_newest(self._directory)
            if attempt is not None and attempt.number > after:
                return attempt
            if after and await asyncio.to_thread(is_over, self._directory, states):
                return None
            await asyncio.sleep(_LOOK_EVERY_S)
        return None

    async def _serve(self, attempt: Attempt, told: asyncio.Event) -> GuestsEnd:
        """Serves in one attempt to its end, or until told."""
        config, request = attempt.run_config(), self._request
        hardware = hardware_of(request, config)
        await check_machine(attempt, request, os.environ)
        attempts = read_attempts(self._directory)
        async with AsyncExitStack() as stack:
            bus = await connect(attempt, f"join-{self._origin}", leader=attempts[-1].node if attempts else "")
            stack.push_async_callback(bus.close)
            plans = plan_guests(request, hardware, self._origin)
            await check_names(bus, plans)
            if request.pool not in config.pools:
                await stack.enter_async_context(guest_pool(bus, request, hardware))
            guests = Guests(
                attempt,
                plans,
                bus,
                start=self._start_with(devices_of(request, config, os.environ)),
                told=told,
                note=self._note,
                age_s=lambda: time.time() - self._asked_at,
            )
            self._note(
                f"joining attempt {attempt.number} of {self._directory}: {request.workers} {request.role} of class "
                f"{hardware} in pool {request.pool}"
            )
            return await guests.run()

    async def _next(self, attempt: Attempt, told: asyncio.Event) -> Attempt | None:
        """The attempt after this one; None when there is none, which is said, or when told."""
        self._note(f"attempt {attempt.number} is over")
        waiting = self._wait_for_attempt(after=attempt.number, deadline_s=_NEXT_ATTEMPT_S)
        following = await unless_stopped(waiting, told)
        if following is not None:
            self._asked_at = time.time()
        elif not told.is_set():
            self._note(await asyncio.to_thread(self._last_words))
        return following

    def _last_words(self) -> str:
        if not is_over(self._directory, JobStates(vanished_after_s=_ASKED_ONCE_S)):
            return f"the run did not go on within {_NEXT_ATTEMPT_S:g} s; its workers have ended"
        last = read_attempts(self._directory)[-1].event
        return f"the run is {last if last in OVER else 'lost'}; its workers have ended"
