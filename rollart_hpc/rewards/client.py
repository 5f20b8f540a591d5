"""The reward client: a serverless URL first, the local path as its fallback (paper section 6.1).

Invariants:

- A reward is a pure function, so a call may be repeated; all attempts of one call carry one idempotency key.
- What may pass by itself is tried again: no connection, 408, 425, 429, 5xx. Every other failure, a function
  error among them (status 200 with ``X-Fc-Error-Type``), goes to the local path at once.
- The serverless path takes at most ``deadline_s``; the local path has its own deadlines.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

import aiohttp
import msgspec

from rollart_hpc.rewards.circuit import CircuitBreaker
from rollart_hpc.types import Episode, Score

LocalPath = Callable[[str, Episode], Awaitable[Score]]

_RETRYABLE_STATUSES = frozenset({408, 425, 429, *range(500, 600)})
_FUNCTION_ERROR_HEADER = "X-Fc-Error-Type"
_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0


class _AttemptError(Exception):
    """One attempt failed."""

    def __init__(self, text: str, *, is_retryable: bool, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.is_retryable = is_retryable
        self.retry_after_s = retry_after_s


class RewardClient:
    """Scores episodes; ``async with`` opens and closes its connections.

    Args:
        urls: endpoint by task; tasks without one go to the local path.
        local: the fallback, called with task and episode.
        headers: sent with every request, for example a bearer token.
        deadline_s: of the whole serverless path of one call, pauses included.
        attempt_timeout_s: of one request.
        breaker_failures: failed calls in a row after which a task's URL is left alone.
        breaker_open_s: for how long.
    """

    def __init__(
        self,
        urls: Mapping[str, str | None],
        local: LocalPath,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float = 20.0,
        attempt_timeout_s: float = 10.0,
        breaker_failures: int = 5,
        breaker_open_s: float = 30.0,
    ) -> None:
        self.paths_taken: Counter[str] = Counter()
        """Calls by how they ended: ``serverless``, ``local``, ``fallback``."""
        self.last_failure = ""
        """Why the serverless path failed last, for people."""
        self._urls = {task: url for task, url in urls.items() if url}
        self._local = local
        self._headers = dict(headers or {})
        self._deadline_s = deadline_s
        self._attempt_timeout_s = attempt_timeout_s
        self._breakers = {task: CircuitBreaker(failures=breaker_failures, open_s=breaker_open_s) for task in self._urls}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Opens the connection pool."""
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.close()

    async def score(self, task: str, episode: Episode) -> Score:
        """The reward of one finished episode.

        Raises:
            RewardFault: the local path gives none either.
        """
        url = self._urls.get(task)
        if url is None:
            self.paths_taken["local"] += 1
            return await self._local(task, episode)
        breaker = self._breakers[task]
        if breaker.admits():
            try:
                score = await self._score_remotely(url, episode)
            except _AttemptError as failure:
                breaker.record(success=False)
                self.last_failure = f"{url}: {failure}"
            else:
                breaker.record(success=True)
                self.paths_taken["serverless"] += 1
                return score
        self.paths_taken["fallback"] += 1
        return await self._local(task, episode)

    async def _score_remotely(self, url: str, episode: Episode) -> Score:
        body = msgspec.json.encode(episode)
        key = uuid.uuid4().hex
        end = time.monotonic() + self._deadline_s
        attempt = 0
        while True:
            try:
                return await self._attempt(url, body, key, end - time.monotonic())
            except _AttemptError as failure:
                ceiling_s = min(_MAX_BACKOFF_S, _BACKOFF_S * 2**attempt)
                pause_s = max(failure.retry_after_s, random.uniform(0, ceiling_s))
                if not failure.is_retryable or time.monotonic() + pause_s >= end:
                    raise
            attempt += 1
            await asyncio.sleep(pause_s)

    async def _attempt(self, url: str, body: bytes, key: str, remaining_s: float) -> Score:
        if self._http is None:
            raise RuntimeError("the reward client is not open; use `async with`")
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        timeout = aiohttp.ClientTimeout(total=max(0.001, min(self._attempt_timeout_s, remaining_s)))
        try:
            async with self._http.post(url, data=body, headers=headers, timeout=timeout) as response:
                answer = await response.read()
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            raise _AttemptError(f"{type(error).__name__} {error}", is_retryable=True) from error
        except aiohttp.ClientError as error:
            raise _AttemptError(f"{type(error).__name__} {error}", is_retryable=False) from error
        if response.status != 200:
            raise _AttemptError(
                f"status {response.status}: {answer[:200]!r}",
                is_retryable=response.status in _RETRYABLE_STATUSES,
                retry_after_s=_seconds(response.headers.get("Retry-After")),
            )
        if _FUNCTION_ERROR_HEADER in response.headers:
            kind = response.headers[_FUNCTION_ERROR_HEADER]
            raise _AttemptError(f"the function failed with {kind}: {answer[:200]!r}", is_retryable=False)
        return _read_score(answer)


def _read_score(answer: bytes) -> Score:
    try:
        # JSON has no NaN, and a number beyond a float's range is refused here too.
        return msgspec.json.decode(answer, type=Score)
    except msgspec.MsgspecError as error:
        raise _AttemptError(f"answer {answer[:200]!r} is no score: {error}", is_retryable=False) from error


def _seconds(retry_after: str | None) -> float:
    try:
        return max(0.0, float(retry_after or 0))
    except ValueError:
        return 0.0
