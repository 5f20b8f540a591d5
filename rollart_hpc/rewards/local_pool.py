"""The local reward pool: reward functions in child processes, the fallback of serverless calls (paper section 6.1).

Consumes calls of `LocalRewardPool.score`; each waits for a child with room, then for its own answer, and wakes
nobody else. Invariants:

- Every call ends in a score or a `RewardFault`; whatever goes wrong is never a reward of 0.
- Reward functions are pure, so calls that lose their child through another's fault are sent to another one.
- A call's deadline counts from the moment its function starts. A child with an overdue call is killed and
  replaced: nothing else ends a function that blocks.
- When a child dies, the calls that had started are suspects: each is tried once more, alone in its child, so
  that the one that kills is found and the others succeed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Self

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import end_all
from rollart_hpc.errors import ConfigError, RewardFault
from rollart_hpc.rewards.reward_child import Call, Load
from rollart_hpc.rewards.reward_process import PendingCall, RewardProcess
from rollart_hpc.types import Episode, Score

_SWEEP_S = 0.05
_MAX_FAILED_STARTS = 4
_START_BACKOFF_S = 0.2


class LocalRewardPool:
    """Scores episodes in ``num_children`` processes; ``async with`` starts and closes it.

    Args:
        functions: entry point of each task's reward function.
        timeout_s: of one call, from the start of its function.
        num_children: processes, each on one core.
        in_flight_per_child: calls that one child holds at the same time; the others wait here.
        start_timeout_s: of a child, until all functions are imported.
        queue_timeout_s: how long a call may wait for its function to start.
    """

    def __init__(
        self,
        functions: Mapping[str, str],
        *,
        timeout_s: float,
        num_children: int = 1,
        in_flight_per_child: int = 64,
        start_timeout_s: float = 60.0,
        queue_timeout_s: float = 300.0,
    ) -> None:
        self._tasks = frozenset(functions)
        self._load = codec.encode(Load(dict(functions)))
        self._timeout_s = timeout_s
        self._num_children = num_children
        self._in_flight_per_child = in_flight_per_child
        self._start_timeout_s = start_timeout_s
        self._queue_timeout_s = queue_timeout_s
        self._processes: list[RewardProcess] = []
        self._waiting: deque[PendingCall] = deque()
        self._last_id = 0
        self._failed_starts = 0
        self._end_reason = ""
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        """Starts the pool."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the pool."""
        await self.close()

    async def start(self) -> None:
        """Starts the children and waits until they are ready.

        Raises:
            ConfigError: a reward function cannot be imported.
            RewardFault: died, timeout: a child cannot be started.
        """
        self._processes = [self._new_process() for _ in range(self._num_children)]
        try:
            async with asyncio.timeout(self._start_timeout_s):
                for process in list(self._processes):
                    await process.start_is_over.wait()
                    if process.refusal:
                        raise ConfigError(process.refusal)
                    if not process.is_ready:
                        raise RewardFault("died", f"a reward process ended at its start: {process.child.exit_text}")
        except TimeoutError as error:
            await self.close()
            raise RewardFault("timeout", f"a reward process took over {self._start_timeout_s:g} s to start") from error
        except BaseException:
            await self.close()
            raise
        self._sweep()

    async def score(self, task: str, episode: Episode) -> Score:
        """The reward of one finished episode.

        Raises:
            RewardFault: timeout, raised, bad_value, died.
        """
        if self._end_reason:
            raise RewardFault("died", self._end_reason)
        if task not in self._tasks:
            raise RewardFault("raised", f"no reward function for task {task!r}; known are {sorted(self._tasks)}")
        self._last_id += 1
        message = codec.encode(Call(self._last_id, task, episode))
        call = PendingCall(self._last_id, message, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._dispatch()
        return await call.answer

    async def close(self) -> None:
        """Kills the children; calls in flight end in a fault; bounded."""
        self._stop("the reward pool was closed")
        for process in self._processes:
            process.kill()
        await end_all([process.child for process in self._processes], grace_s=0)

    def _new_process(self) -> RewardProcess:
        return RewardProcess(self._load, on_room=self._dispatch, on_end=self._process_ended)

    def _dispatch(self) -> None:
        while self._waiting:
            call = self._waiting[0]
            if not call.answer.done():
                process = self._process_with_room(alone=call.is_suspect)
                if process is None:
                    return
                process.take(call)
            self._waiting.popleft()

    def _process_with_room(self, *, alone: bool) -> RewardProcess | None:
        most = 1 if alone else self._in_flight_per_child
        free = [process for process in self._processes if len(process.calls) < most and process.accepts_calls]
        return min(free, key=lambda process: len(process.calls)) if free else None

    def _sweep(self) -> None:
        """Ends what is overdue; runs by a timer for as long as the pool is open."""
        now = time.monotonic()
        for process in self._processes:
            process.kill_if_overdue(now, call_timeout_s=self._timeout_s, start_timeout_s=self._start_timeout_s)
        while self._waiting and self._waiting[0].queued_at + self._queue_timeout_s < now:
            self._waiting.popleft().fail("timeout", f"no reward process had room for {self._queue_timeout_s:g} s")
        self._sweep_timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _process_ended(self, process: RewardProcess) -> None:
        self._processes.remove(process)
        self._send_again(process)
        if self._end_reason:
            return
        self._failed_starts = 0 if process.is_ready else self._failed_starts + 1
        if self._failed_starts < _MAX_FAILED_STARTS:
            delay_s = _START_BACKOFF_S * (2**self._failed_starts - 1)
            asyncio.get_running_loop().call_later(delay_s, self._replace)
        else:
            self._stop(f"no reward process could be started: {process.refusal or process.child.exit_text}")

    def _send_again(self, process: RewardProcess) -> None:
        """Queues what the process had not answered; when it died by itself, what had started is suspect."""
        none_started = not any(call.started_at for call in process.calls.values())
        for call in reversed(process.calls.values()):
            if not process.was_killed and (call.started_at or none_started):
                if call.is_suspect:
                    call.fail("died", f"the function's process ended twice: {process.child.exit_text}")
                call.is_suspect = True
            call.started_at = 0.0
            self._waiting.appendleft(call)

    def _replace(self) -> None:
        if not self._end_reason:
            self._processes.append(self._new_process())

    def _stop(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for call in [*self._waiting, *(call for process in self._processes for call in process.calls.values())]:
            call.fail("died", reason)
        self._waiting.clear()
