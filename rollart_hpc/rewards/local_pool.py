"""The local reward pool: reward functions in child processes, the fallback of serverless calls (paper section 6.1).

Consumes calls of `LocalRewardPool.score`; each waits for a child with room, then for its own answer, and wakes
nobody else. Invariants:

- Every call ends in a score or a `RewardFault`; whatever goes wrong is never a reward of 0.
- Reward functions are pure, so a call may be made in two children; the first answer counts.
- A call's deadline counts from the moment its function starts. A child with an overdue call is killed and
  replaced: nothing else ends a function that blocks. So is one that hangs without any call.
- A function that blocks its child's event loop delays nobody else: calls that wait behind it are made in another
  child, those that have not started after a tenth of a second, the others a little later. A child that stays stuck is
  replaced before it ends.
- Where two children are stuck, what was held up there may block as well: it goes to all children but one, kept for
  calls that come anew. So many bombs at once delay those by the start of one child, not of one after the other.
- When a child dies, the calls that had started are suspects: each is tried once more, alone in its child, so
  that the one that kills is found and the others succeed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import end_all
from rollart_hpc.errors import ConfigError, RewardFault
from rollart_hpc.rewards.payload import TokenEpisode
from rollart_hpc.rewards.reward_child import Call, Function, Load
from rollart_hpc.rewards.reward_process import PendingCall, RewardProcess
from rollart_hpc.types import Episode, Score

_SWEEP_S = 0.05
_MAX_FAILED_STARTS = 4
_START_BACKOFF_S = 0.2
_REPLACE_AFTER_S = 0.5
"""A child that is stuck for so long is replaced, and what waits in it for something is made elsewhere too."""
_MAX_REPLACED = 8
"""Children that are stuck and still there."""
_RETIRE_AFTER_S = 5.0
"""A child too many ends when it had nothing to do for so long."""


class LocalRewardPool:
    """Scores episodes in ``num_children`` processes; ``async with`` starts and closes it.

    Args:
        functions: entry point of each task's reward function.
        arguments: keyword arguments of each, after the episode.
        timeout_s: of one call, from the start of its function.
        num_children: processes, each on one core; with one alone a function that blocks holds up the others until
            another process has started.
        in_flight_per_child: calls that one child holds at the same time; the others wait here.
        start_timeout_s: of a child, until all functions are imported.
        queue_timeout_s: how long a call may wait for a child with room.
        silence_timeout_s: of a child that runs no call and does not answer.
    """

    def __init__(
        self,
        functions: Mapping[str, str],
        *,
        timeout_s: float,
        arguments: Mapping[str, Mapping[str, Any]] | None = None,
        num_children: int = 2,
        in_flight_per_child: int = 64,
        start_timeout_s: float = 60.0,
        queue_timeout_s: float = 300.0,
        silence_timeout_s: float = 60.0,
    ) -> None:
        self._tasks = frozenset(functions)
        given = arguments or {}
        self._load = codec.encode(
            Load({task: Function(name, dict(given.get(task, {}))) for task, name in functions.items()})
        )
        self._timeout_s = timeout_s
        self._num_children = num_children
        self._in_flight_per_child = in_flight_per_child
        self._start_timeout_s = start_timeout_s
        self._queue_timeout_s = queue_timeout_s
        self._silence_timeout_s = silence_timeout_s
        self._processes: list[RewardProcess] = []
        self._waiting: deque[PendingCall] = deque()
        self._held_up: deque[PendingCall] = deque()
        """Calls that had waited to start behind one that blocked its child."""
        self._last_id = 0
        self._failed_starts = 0
        self._next_start_at = 0.0
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

    async def score(self, task: str, episode: Episode | TokenEpisode) -> Score:
        """The reward of one finished episode.

        Raises:
            RewardFault: timeout, raised, bad_value, died; unsendable, for an episode that no message takes.
        """
        if self._end_reason:
            raise RewardFault("died", self._end_reason)
        if task not in self._tasks:
            raise RewardFault("raised", f"no reward function for task {task!r}; known are {sorted(self._tasks)}")
        self._last_id += 1
        in_words = isinstance(episode, Episode)
        message = Call(self._last_id, task, episode if in_words else None, None if in_words else episode)
        try:
            encoded = codec.encode(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RewardFault("unsendable", f"the episode cannot be sent to a reward process: {error}") from error
        call = PendingCall(self._last_id, encoded, asyncio.get_running_loop().create_future())
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
        for queue in (self._waiting, self._held_up):
            while queue:
                call = queue[0]
                if not call.answer.done():
                    process = self._process_with_room(call)
                    if process is None:
                        break
                    process.take(call)
                queue.popleft()

    def _process_with_room(self, call: PendingCall) -> RewardProcess | None:
        most = 1 if call.is_suspect else self._in_flight_per_child
        free = [process for process in self._processes if process.has_room(most)]
        if call.was_held_up and sum(process.is_stuck for process in self._processes) > 1:
            trusted = [process for process in self._processes if process.is_able and not process.has_held_up]
            if len(trusted) < 2:
                free = [process for process in free if process not in trusted]
        return min(free, key=lambda process: (process.has_held_up, len(process.calls))) if free else None

    def _sweep(self) -> None:
        """Ends what is overdue, moves what is held up; runs by a timer for as long as the pool is open."""
        now = time.monotonic()
        for process in self._processes:
            process.check(
                now,
                call_timeout_s=self._timeout_s,
                start_timeout_s=self._start_timeout_s,
                silence_timeout_s=self._silence_timeout_s,
            )
            if process.is_stuck and not process.was_killed:
                for call in process.take_back_unstarted():
                    call.was_held_up, call.queued_at = True, now
                    self._held_up.append(call)
                if process.stuck_s > _REPLACE_AFTER_S:
                    self._queue_again(process.share_waiting())
        for queue in (self._waiting, self._held_up):
            while queue and queue[0].queued_at + self._queue_timeout_s < now:
                queue.popleft().fail("timeout", f"no reward process had room for {self._queue_timeout_s:g} s")
        self._adjust(now)
        self._dispatch()
        self._sweep_timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _adjust(self, now: float) -> None:
        """Starts children in place of those that are gone or stuck, and ends one that is too many."""
        alive = [p for p in self._processes if not p.was_killed]
        patience_s = 0.0 if all(p.is_stuck for p in alive) else _REPLACE_AFTER_S
        able = [p for p in alive if not (p.is_stuck and p.stuck_s > patience_s)]
        # As many again as are stuck: what blocked them may have many of its kind behind it.
        wanted = self._num_children
        if self._waiting or self._held_up:
            wanted = max(wanted, len(alive) - len(able), 2 if self._held_up else 1)
        missing = min(wanted - len(able), self._num_children + _MAX_REPLACED - len(self._processes))
        if missing > 0 and now >= self._next_start_at:
            self._processes += [self._new_process() for _ in range(missing)]
        if len(able) > self._num_children:
            idle = (p for p in able if p.is_ready and not p.calls and p.quiet_s > _RETIRE_AFTER_S)
            if process := next(idle, None):
                process.kill()

    def _process_ended(self, process: RewardProcess) -> None:
        self._processes.remove(process)
        self._send_again(process)
        if self._end_reason:
            return
        self._failed_starts = 0 if process.is_ready else self._failed_starts + 1
        if self._failed_starts < _MAX_FAILED_STARTS:
            now = time.monotonic()
            self._next_start_at = now + _START_BACKOFF_S * (2**self._failed_starts - 1)
            self._adjust(now)
            self._dispatch()
        else:
            self._stop(f"no reward process could be started: {process.refusal or process.child.exit_text}")

    def _send_again(self, process: RewardProcess) -> None:
        """Queues what the process had not answered; when it died by itself, what had started is suspect."""
        none_started = not any(held.started_at for held in process.calls.values())
        lost = [held for held in process.calls.values() if not held.is_elsewhere]
        for held in lost:
            call = held.call
            if not process.was_killed and (held.started_at or none_started):
                if call.is_suspect:
                    call.fail("died", f"the function's process ended twice: {process.child.exit_text}")
                call.is_suspect = True
        self._queue_again([held.call for held in lost])

    def _queue_again(self, calls: list[PendingCall]) -> None:
        now = time.monotonic()
        for call in reversed(calls):
            call.queued_at = now
            self._waiting.appendleft(call)

    def _stop(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        held = (held.call for process in self._processes for held in process.calls.values())
        for call in (*self._waiting, *self._held_up, *held):
            call.fail("died", reason)
        self._waiting.clear()
        self._held_up.clear()
