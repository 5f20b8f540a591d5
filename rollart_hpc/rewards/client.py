"""The reward client: a serverless endpoint first, the local path as its fallback (paper section 6.1).

Invariants:

- One call gives one score or raises; whatever is under way elsewhere has no say any more.
- An endpoint that is dead, hangs or answers nothing of use delays a reward for no more than ``fallback_after_s``: a
  call that has waited so long, while nobody got a result in the second half of that time, trips the circuit, and all
  calls that wait for the endpoint take the local path at once. An endpoint that gives others their results is only
  slow; a call has the whole deadline there.
- While the circuit is open no call waits for the endpoint: each takes the local path at once. From time to time one
  is sent to the endpoint as well, as a probe; only whether it has a result counts, and closes the circuit again.
- The idempotency key of a call is made of trajectory and episode: the same for a repeat by another process.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Self

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.config.serverless import ServerlessSection
from rollart_hpc.errors import RewardFault
from rollart_hpc.rewards.attempt import AttemptError
from rollart_hpc.rewards.checked_score import checked_score
from rollart_hpc.rewards.circuit import CircuitBreaker
from rollart_hpc.rewards.http_function import HttpFunction
from rollart_hpc.rewards.payload import PayloadError, PayloadWriter, Played, Shape
from rollart_hpc.types import Episode, Score

LocalPath = Callable[[str, Episode], Awaitable[Score]]
_log = logging.getLogger(__name__)
LEFT_ALONE = "left alone"
SILENT = "no result for anybody"
_OPEN_S = 1.0
_MAX_OPEN_S = 30.0
_OF_THE_EPISODE = frozenset({"payload too large", "no payload"})
"""Causes that say nothing about the endpoint."""


class _Endpoint:
    """One endpoint as all tasks that use it see it."""

    def __init__(self, section: ServerlessSection, *, breaker_failures: int, breaker_open_s: float) -> None:
        self.function = HttpFunction(section)
        self.circuit = CircuitBreaker(
            failures=breaker_failures, open_s=breaker_open_s, max_open_s=max(breaker_open_s, _MAX_OPEN_S)
        )
        self.result_at = 0.0
        """When it last gave a result, in the time of the event loop."""
        self._opening: asyncio.Future[str] | None = None

    def result(self) -> None:
        """Takes note of one."""
        self.result_at = asyncio.get_running_loop().time()
        self.circuit.record(success=True)

    def failed(self) -> None:
        """Takes note of a call without a result."""
        was_closed = self.circuit.is_closed
        self.circuit.record(success=False)
        if was_closed and not self.circuit.is_closed:
            self._wake(LEFT_ALONE)

    def is_silent(self) -> None:
        """Nobody got a result for too long."""
        if self.circuit.is_closed:
            self.circuit.trip()
            self._wake(SILENT)

    def opening(self) -> asyncio.Future[str]:
        """Has the cause when the circuit opens the next time."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
        return self._opening

    def _wake(self, cause: str) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.set_result(cause)


class RewardClient:
    """Scores episodes; ``async with`` opens and closes its connections.

    Args:
        endpoints: by task; tasks without one go to the local path.
        local: the fallback, called with task and episode.
        shapes: what each task's endpoint gets; text where a task has none.
        payloads: makes the bodies; needed for references alone.
        deadline_s: of the whole serverless path of one call, pauses included.
        breaker_failures: failed calls in a row after which an endpoint is left alone.
        breaker_open_s: until it is first probed; each probe in vain doubles that, up to 30 s.

    Raises (the constructor):
        ConfigError: an environment variable with a secret is not set.
    """

    def __init__(
        self,
        endpoints: Mapping[str, ServerlessSection],
        local: LocalPath,
        *,
        payloads: PayloadWriter,
        shapes: Mapping[str, Shape] | None = None,
        deadline_s: float = 20.0,
        breaker_failures: int = 5,
        breaker_open_s: float = _OPEN_S,
    ) -> None:
        self.paths_taken: Counter[str] = Counter()
        """Calls by how they went: ``serverless``, ``local``, ``fallback``."""
        self.causes: Counter[str] = Counter()
        """Of the fallbacks."""
        self.last_failure = ""
        """Why the serverless path failed last, for people."""
        self._local = local
        self._payloads = payloads
        self._shapes: dict[str, Shape] = dict(shapes or {})
        self._deadline_s = deadline_s
        made: dict[ServerlessSection, _Endpoint] = {}
        self._endpoints: dict[str, _Endpoint] = {}
        for task, section in endpoints.items():
            if section not in made:
                made[section] = _Endpoint(section, breaker_failures=breaker_failures, breaker_open_s=breaker_open_s)
            self._endpoints[task] = made[section]
        self._probes: set[asyncio.Task[None]] = set()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Opens the connection pools."""
        for function in self.functions:
            await self._open.enter_async_context(function)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends the probes and closes the connections."""
        for probe in self._probes:
            probe.cancel()
        if self._probes:
            await asyncio.wait(self._probes)
        await self._open.aclose()

    @property
    def functions(self) -> set[HttpFunction]:
        """Those behind the endpoints, with their counts."""
        return {endpoint.function for endpoint in self._endpoints.values()}

    async def score(self, episode: Episode, played: Played | None = None) -> Score:
        """The reward of one finished episode; one that fell back has the cause among its metrics, in the journal too.

        Raises:
            RewardFault: the local path gives none either.
        """
        task = episode.task
        endpoint = self._endpoints.get(task)
        if endpoint is None:
            self.paths_taken["local"] += 1
            return await self._local(task, episode)
        try:
            score = await self._score_remotely(endpoint, episode, played)
        except AttemptError as failure:
            self._note(endpoint, task, failure)
            self.paths_taken["fallback"] += 1
            score = await self._local(task, episode)
            metrics = score.metrics | {f"fallback_{failure.cause.replace(' ', '_')}": 1.0}
            return msgspec.structs.replace(score, metrics=metrics)
        self.paths_taken["serverless"] += 1
        return score

    async def _score_remotely(self, endpoint: _Endpoint, episode: Episode, played: Played | None) -> Score:
        if not endpoint.circuit.is_closed:
            if endpoint.circuit.admits():
                probe = asyncio.create_task(self._probe(endpoint, episode, played))
                self._probes.add(probe)
                probe.add_done_callback(self._probes.discard)
            raise AttemptError(LEFT_ALONE, f"the circuit is open; before: {self.last_failure or 'nothing'}")
        call = asyncio.create_task(self._call(endpoint, episode, played))
        try:
            await self._wait_for_life(endpoint, call)
            return await call
        finally:
            call.cancel()
            await asyncio.wait({call})

    async def _wait_for_life(self, endpoint: _Endpoint, call: asyncio.Task[Score]) -> None:
        """Returns when the call is over.

        Raises:
            AttemptError: it is not worth waiting for any more.
        """
        loop, opening = asyncio.get_running_loop(), endpoint.opening()
        begin, patience_s = loop.time(), endpoint.function.endpoint.fallback_after_s
        while (left_s := max(begin + patience_s, endpoint.result_at + patience_s / 2) - loop.time()) > 0:
            await asyncio.wait((call, opening), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return
            if opening.done():
                raise AttemptError(opening.result(), "the circuit opened meanwhile")
        endpoint.is_silent()
        raise AttemptError(SILENT, f"within {patience_s:g} s")

    async def _call(self, endpoint: _Endpoint, episode: Episode, played: Played | None) -> Score:
        key = call_key(episode, played)
        shape = self._shapes.get(episode.task, "text")
        try:
            async with self._payloads.body(shape, key, episode, played) as body:
                score = await endpoint.function.call(body, key=key, read=_read_score, timeout_s=self._deadline_s)
        except PayloadError as error:
            raise AttemptError("no payload", str(error)) from error
        except AttemptError as failure:
            if failure.cause not in _OF_THE_EPISODE:
                endpoint.failed()
            raise
        endpoint.result()
        return score

    async def _probe(self, endpoint: _Endpoint, episode: Episode, played: Played | None) -> None:
        try:
            await self._call(endpoint, episode, played)
        except AttemptError as failure:
            self.last_failure = f"{endpoint.function.endpoint.url}: {failure}"
        else:
            _log.warning("%s gives results again", endpoint.function.endpoint.url)

    def _note(self, endpoint: _Endpoint, task: str, failure: AttemptError) -> None:
        self.causes[failure.cause] += 1
        if failure.cause == LEFT_ALONE:
            return  # what opened the circuit is told
        self.last_failure = f"{endpoint.function.endpoint.url}: {failure}"
        count = self.causes[failure.cause]
        if count & (count - 1) == 0:  # 1, 2, 4, ...: the first ones are read, and thousands do not fill a disk
            _log.warning(
                "the reward of %s falls back to the local pool: %s: %s (%d such calls; %s)",
                task, endpoint.function.endpoint.url, failure, count, dict(self.paths_taken),
            )  # fmt: skip


def call_key(episode: Episode, played: Played | None) -> str:
    """The idempotency key: the same for the same episode of the same trajectory, whoever asks."""
    digest = hashlib.blake2b(played.trajectory_id.encode() if played else b"", digest_size=16)
    digest.update(b"\0" + codec.encode(episode))
    return digest.hexdigest()


def _read_score(answer: bytes) -> Score:
    try:
        return checked_score(msgspec.json.decode(answer, type=Score))
    except RewardFault as fault:
        raise ValueError(str(fault)) from fault
