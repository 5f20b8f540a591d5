"""HttpFunction: calls of one serverless function, however often it takes (paper R3).

What `RewardClient` and `register_serverless` have in common. Invariants:

- A call may be repeated, since what is called is pure: all its tries carry one idempotency key, and each is signed
  anew.
- A call ends within its deadline, pauses included; a pause that would not end before it is not begun.
- With ``hedge_after_s`` at most two requests of a call are under way; the first result counts, the other request is
  cancelled.
- A body over the endpoint's limit is never sent.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import aiohttp

from rollart_hpc.config.serverless import ServerlessSection
from rollart_hpc.rewards.attempt import AttemptError, attempt
from rollart_hpc.rewards.signature import KEY_HEADER, sha256, signed_headers

T = TypeVar("T")
_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 5.0


class HttpFunction:
    """One endpoint; ``async with`` opens and closes its connections.

    Raises (the constructor):
        ConfigError: an environment variable with a secret is not set.
    """

    def __init__(self, endpoint: ServerlessSection) -> None:
        self.endpoint = endpoint
        self.num_requests = 0
        self.num_hedges = 0
        """Second requests beside a first one."""
        self.num_hedges_won = 0
        self.failed_attempts: Counter[str] = Counter()
        """By cause, those that a later try made good included."""
        self._secret = endpoint.secret()
        bearer = endpoint.bearer()
        self._headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        self._turn = asyncio.Semaphore(endpoint.max_concurrent)
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Opens the connection pool."""
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers=self._headers | {"Content-Type": "application/json"}
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.close()

    def check_size(self, body: bytes) -> None:
        """Raises AttemptError for a body that is not sent."""
        if len(body) > self.endpoint.max_body_bytes:
            raise AttemptError(
                "payload too large",
                f"{len(body)} bytes, at most {self.endpoint.max_body_bytes} are sent (max_body_mb = "
                f"{self.endpoint.max_body_mb:g}); see tasks.NAME.reward_payload for smaller ones",
            )

    async def call(self, body: bytes, *, key: str, read: Callable[[bytes], T], timeout_s: float) -> T:
        """The function's result, tried until it is there or trying is over.

        Raises:
            AttemptError: the last failure.
        """
        self.check_size(body)
        digest = sha256(body) if self._secret else ""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._tries(lambda: self._attempt(body, key, digest, read), time.monotonic() + timeout_s)
        except TimeoutError as error:
            raise AttemptError("timeout", f"no result within {timeout_s:.3g} s") from error

    async def _tries(self, request: Callable[[], Coroutine[Any, Any, T]], end: float) -> T:
        tries = 0
        while True:
            try:
                return await self._try(request)
            except AttemptError as failure:
                tries += 1
                # The jitter comes on top: all who were asked to wait for a second would come back at once.
                pause_s = failure.retry_after_s + random.uniform(0, min(_MAX_BACKOFF_S, _BACKOFF_S * 2**tries))
                if tries >= failure.max_tries or time.monotonic() + pause_s >= end:
                    raise
            await asyncio.sleep(pause_s)

    async def _try(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """One request, with another beside it when it takes long."""
        if self.endpoint.hedge_after_s is None:
            return await request()
        requests = {first := asyncio.ensure_future(request())}
        try:
            await asyncio.wait(requests, timeout=self.endpoint.hedge_after_s)
            if not first.done():
                self.num_hedges += 1
                requests.add(asyncio.ensure_future(request()))
            failure: BaseException | None = None
            pending = requests
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    failure = one.exception()
                    if failure is None:
                        self.num_hedges_won += one is not first
                        return one.result()
            raise failure or AssertionError
        finally:
            await _end(requests)

    async def _attempt(self, body: bytes, key: str, digest: str, read: Callable[[bytes], T]) -> T:
        if self._http is None:
            raise RuntimeError("the function is not open; use `async with`")
        async with self._turn:
            headers = {KEY_HEADER: key} | (signed_headers(self._secret, key, digest) if self._secret else {})
            self.num_requests += 1
            try:
                return await attempt(
                    self._http, self.endpoint.url, body, headers, read, timeout_s=self.endpoint.attempt_timeout_s
                )
            except AttemptError as failure:
                self.failed_attempts[failure.cause] += 1
                raise


async def _end(requests: set[asyncio.Task[T]]) -> None:
    """Cancels what is still under way and waits until it has ended: nothing is left without an owner."""
    for one in requests:
        one.cancel()
    await asyncio.wait(requests)
    for one in requests:
        if not one.cancelled():
            one.exception()  # a failure that nobody asks for is no news
