"""The attempts of a run in one leader: the next follows a failed one at once, in the same allocation.

Consumes ends of attempts and requests to stop; produces attempts and their records; waits for each attempt's end, and
for a moment after the second failure in a row; woken by a request to stop. Ends when the run is done, was stopped,
has failed too often (`failure_budget`), or when its input is wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.checkpoint import find_newest
from rollart_hpc.data_plane.stop_signals import StopSignals
from rollart_hpc.errors import RollartError
from rollart_hpc.launcher import run_directory
from rollart_hpc.launcher.attempt_log import AttemptLog, AttemptRecord, read_attempts, read_events
from rollart_hpc.launcher.continuation import Continuation
from rollart_hpc.launcher.failure import WRONG_INPUT, AttemptFailedError
from rollart_hpc.launcher.failure_budget import failures_in_a_row, pause_s, why_given_up
from rollart_hpc.launcher.leader import AttemptEnd, Leader
from rollart_hpc.launcher.progress import ProgressView
from rollart_hpc.launcher.starters import Starter
from rollart_hpc.launcher.stop_request import StopRequest
from rollart_hpc.observe.metrics import read_metrics
from rollart_hpc.slurm.node import node_name, restart_count

_LOOK_AGAIN_S = 600.0
"""A job's time limit may be changed while it runs."""


class Attempts:
    """Runs attempts of one run, whose lock this process holds."""

    def __init__(
        self,
        config: RunConfig,
        starter: Starter,
        screen: Console,
        *,
        continuation: Continuation,
        changes: Mapping[str, list[Any]],
        job: str,
    ) -> None:
        self._config, self._starter, self._screen = config, starter, screen
        self._continuation, self._changes, self._job = continuation, changes, job
        self._directory = config.run.path()
        self._stop = StopRequest()
        self._log, self._view = self._next_log(), ProgressView(screen, config.run.steps)
        self._given_up = ""
        self._asking = asyncio.Lock()

    async def run(self) -> AttemptEnd:
        """Runs to the end of the last attempt, and sees to what follows by itself.

        Raises:
            AttemptFailedError: the last attempt failed and there is no further one.
            RollartError: the input is wrong.
        """
        signals = StopSignals()
        services = (self._heed_signals(signals), self._stop_in_time(), self._say_stop())
        helpers = [asyncio.ensure_future(service) for service in services]
        try:
            end = await self._run_attempts()
            if end.stopped:
                async with self._asking:
                    # The job may be requeued by it, and this process killed.
                    self._log.write("next", next=await asyncio.to_thread(self._continuation.go_on))
            return end
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers)

    async def _run_attempts(self) -> AttemptEnd:
        is_by_user = is_begun_by_user(read_events(self._directory), self._job)
        while True:
            self._log.write("started", requeues=restart_count(), by_user=is_by_user, changes=dict(self._changes))
            self._view.note(f"run {self._config.run.name}, attempt {self._log.number}: {self._directory}")
            leader = Leader(
                self._config,
                self._log.number,
                self._starter,
                self._view,
                self._log,
                self._stop,
                on_failure=self._failed,
            )
            try:
                with self._view.shown():
                    return await leader.run_attempt()
            except (RollartError, OSError) as error:
                if self._given_up:
                    details = error.details if isinstance(error, AttemptFailedError) else ""
                    raise AttemptFailedError(f"{error}; {self._given_up}", details) from error
                if not _is_retryable(error):
                    raise
            if await self._stop.comes_within(pause_s(self._num_failures())):
                self._log.write("stopped", cause="it was to stop before the next attempt began")
                return AttemptEnd(stopped=True)
            is_by_user = False
            self._log, self._view = self._next_log(), ProgressView(self._screen, self._config.run.steps)

    def _next_log(self) -> AttemptLog:
        number = run_directory.next_attempt(self._directory)
        return AttemptLog(self._directory, number, job=self._job, node=node_name())

    def _failed(self, error: Exception, restarts: dict[str, int]) -> None:
        """Records a failure as soon as it is known, and whether another attempt follows."""
        cause, step = str(error), self._newest_step()
        newest = AttemptRecord(attempt=self._log.number, event="failed", at=time.time(), cause=cause, step=step)
        self._given_up = why_given_up([*read_attempts(self._directory), newest], self._config.run.max_failures)
        follows = "another attempt" if _is_retryable(error) and not self._given_up else ""
        self._log.write("failed", cause=cause, restarts=restarts, step=step, next=follows)
        if follows:
            self._view.note(f"attempt {self._log.number} failed, {follows} follows: {cause}")

    def _num_failures(self) -> int:
        return len(failures_in_a_row(read_attempts(self._directory)))

    def _newest_step(self) -> int:
        """The newest step that is trained, as far as the run's own files say."""
        records, newest = read_metrics(self._directory), find_newest(self._directory)
        return max(records[-1]["step"] if records else 0, newest.state.step if newest is not None else 0)

    async def _heed_signals(self, signals: StopSignals) -> None:
        """The first stops the run; later ones are told to the continuation: they may mean that less time is left."""
        while True:
            await signals.told.wait()
            signals.told.clear()
            if self._stop.is_set:
                await self._tell_continuation()
            elif signals.first is not None:
                name, at = signals.first
                self._stop.request(f"leader: {name}", at)

    async def _stop_in_time(self) -> None:
        """Begins the stop before the allocation ends, if it ever does."""
        while (at := await asyncio.to_thread(self._continuation.stop_at)) is not None:
            if (left_s := at - time.time()) <= 0:
                self._stop.request("the time of the job is nearly over")
                return
            await asyncio.sleep(min(left_s, _LOOK_AGAIN_S))

    async def _say_stop(self) -> None:
        await self._stop.wait()
        self._view.note(f"stopping ({self._stop.reason}): saving at the next step boundary")
        self._log.write("noticed", cause=self._stop.reason)
        await self._tell_continuation()

    async def _tell_continuation(self) -> None:
        async with self._asking:
            await asyncio.to_thread(self._continuation.noticed)


def is_begun_by_user(events: Sequence[AttemptRecord], job: str) -> bool:
    """Whether the user asked for the next attempt, and not the run itself: by a requeue of its job, or by a new one."""
    if not job or not events:
        return True
    if any(event.job == job for event in events):
        return False
    newest = events[-1]
    return newest.event not in ("noticed", "saved", "stopped") and not (newest.event == "next" and newest.next)


def _is_retryable(error: Exception) -> bool:
    if isinstance(error, AttemptFailedError):
        return not error.is_wrong_input
    return isinstance(error, OSError) or (isinstance(error, RollartError) and error.exit_code not in WRONG_INPUT)
