"""Rewards by the worker class's own `compute_rewards` (paper Listing 1), the tasks' functions being its fallback.

Invariant: whatever goes wrong is a fault, never a reward of 0; it leaves the episode to the local pool and says so.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from rollart_hpc.errors import RewardFault, WorkerDeclarationError, raised_text
from rollart_hpc.rewards.checked_score import checked_score
from rollart_hpc.rewards.circuit import CircuitBreaker
from rollart_hpc.types import Episode, Score

_log = logging.getLogger(__name__)
METHOD = "compute_rewards"
_BREAKER_FAILURES = 5
_BREAKER_OPEN_S = 30.0
ComputeRewards = Callable[[list[dict[str, Any]]], Awaitable[object]]


class ClassRewards:
    """Scores episodes by one worker's method.

    Args:
        compute: calls the method with an episode's turns.
        timeout_s: of one call.
    """

    def __init__(self, compute: ComputeRewards, *, timeout_s: float) -> None:
        self.num_scored = 0
        self.faults: Counter[str] = Counter()
        """Episodes that were left to the local pool, by cause."""
        self._compute, self._timeout_s = compute, timeout_s
        self._breakers: dict[str, CircuitBreaker] = {}

    async def score(self, episode: Episode) -> Score | None:
        """The episode's score; None when the local pool is to give it."""
        breaker = self._breakers.setdefault(
            episode.task, CircuitBreaker(failures=_BREAKER_FAILURES, open_s=_BREAKER_OPEN_S)
        )
        if not breaker.admits():
            self.faults["left alone"] += 1
            return None
        try:
            score = await self._score(episode)
        except RewardFault as fault:
            breaker.record(success=False)
            self._note(episode.task, fault)
            return None
        breaker.record(success=True)
        self.num_scored += 1
        return score

    async def _score(self, episode: Episode) -> Score:
        turns = [msgspec.to_builtins(turn) for turn in episode.turns]
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return score_of(await self._compute(turns))
        except RewardFault:
            raise
        except (Exception, SystemExit) as error:
            if deadline.expired():
                raise RewardFault("timeout", f"no answer within {self._timeout_s:g} s") from error
            raise RewardFault("raised", raised_text(error)) from error

    def _note(self, task: str, fault: RewardFault) -> None:
        self.faults[fault.cause] += 1
        count = self.faults.total()
        if count & (count - 1) == 0:  # 1, 2, 4, ...: the first ones are read, and thousands do not fill a disk
            _log.warning(
                "%s gave no reward for %s, the task's own function does: %s (%d such episodes, %d scored)",
                METHOD, task, fault, count, self.num_scored,
            )  # fmt: skip


def score_of(value: object) -> Score:
    """What `compute_rewards` returned as a score.

    Raises:
        RewardFault: bad_value, for anything but a finite number, a mapping with ``reward`` and perhaps ``success`` and
            ``metrics``, a `Score`, or a list of one of these.
    """
    if isinstance(value, list | tuple):
        values = cast("list[object] | tuple[object, ...]", value)
        if len(values) != 1:
            raise RewardFault("bad_value", f"got {len(values)} rewards for one episode; expected one")
        value = values[0]
    if isinstance(value, Mapping):
        try:
            value = msgspec.convert(cast("Mapping[str, object]", value), Score)
        except msgspec.ValidationError as error:
            raise RewardFault("bad_value", f"got {value!r:.80}: {error}; expected reward, success, metrics") from error
    return checked_score(value)


def check_compute_rewards(worker_class: type) -> None:
    """Checks that the method of a new class takes an episode's turns.

    Raises:
        WorkerDeclarationError: it does not.
    """
    method = getattr(worker_class, METHOD, None)
    if method is None:
        return
    try:
        inspect.signature(method).bind(None, [])
    except (TypeError, ValueError) as error:
        raise WorkerDeclarationError(
            f"{worker_class.__name__}.{METHOD}: {error}; it is called with one argument, the turns of an episode"
        ) from error
