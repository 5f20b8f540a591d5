"""A serverless endpoint that fails in every way, for measurements and tests of those who call it.

While it lives, `FAULTS` of its requests fail, and one in fifty is a cold start. It can be dead (nothing listens) or
hung (connections are taken, nothing is answered), and come back under the same address.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Self

import msgspec
from aiohttp import web

from rollart_hpc.rewards.payload import read_body
from rollart_hpc.types import Episode, Score

_SHARES = {
    "throttled": 0.05,
    "unavailable": 0.05,
    "reset": 0.02,
    "died": 0.02,
    "raised": 0.01,
    "nonsense": 0.01,
    "hangs": 0.01,
}
"""Of the requests."""
FAULTS = sum(_SHARES.values())
_RETRY_AFTER_S = 0.2
_WORK_S = 0.01
_COLD_START_SHARE, _COLD_START_S = 0.02, 0.8
_HANG_S = 60.0


class State(StrEnum):
    """What the endpoint is like."""

    FAULTY = "faulty"
    DEAD = "dead"
    HUNG = "hung"


class FaultyEndpoint:
    """``async with`` starts it on a free port of this machine.

    Args:
        function: what it computes.
        seed: of the faults.
    """

    def __init__(self, function: Callable[[Episode], Score], *, seed: int) -> None:
        self.faults: Counter[str] = Counter()
        self.requests: Counter[State] = Counter()
        """By what it was like."""
        self.url = ""
        self.state = State.DEAD
        self._function = function
        self._rng = random.Random(seed)
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        """Starts it."""
        await self.become(State.FAULTY)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends it."""
        await self.become(State.DEAD)

    async def become(self, state: State) -> None:
        """Changes what it is like."""
        self.state = state
        if state is State.DEAD and self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        elif state is not State.DEAD and self._runner is None:
            app = web.Application(client_max_size=64 << 20)
            app.router.add_post("/", self._answer)
            # What becomes of requests that are broken off on purpose is no news.
            nobody = logging.Logger("faulty endpoint", logging.CRITICAL)
            self._runner = web.AppRunner(app, shutdown_timeout=0.01, logger=nobody)
            await self._runner.setup()
            await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
            self._port = self._runner.addresses[0][1]
            self.url = f"http://127.0.0.1:{self._port}/"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests[self.state] += 1
        body = await request.read()
        fault = "hangs" if self.state is State.HUNG else self._fault()
        if fault:
            self.faults[fault] += 1
            return await self._fail(fault, request)
        await asyncio.sleep(_COLD_START_S if self._rng.random() < _COLD_START_SHARE else _WORK_S)
        episode = read_body(body, None)
        if not isinstance(episode, Episode):
            return web.Response(status=400)
        return web.Response(body=msgspec.json.encode(self._function(episode)))

    def _fault(self) -> str:
        drawn = self._rng.random()
        for fault, share in _SHARES.items():
            if drawn < share:
                return fault
            drawn -= share
        return ""

    async def _fail(self, fault: str, request: web.Request) -> web.StreamResponse:
        if fault == "throttled":
            return web.Response(status=429, headers={"Retry-After": str(_RETRY_AFTER_S)})
        if fault == "unavailable":
            return web.Response(status=503)
        if fault in {"died", "raised"}:
            kind = "UnhandledInvocationError" if fault == "died" else "HandledInvocationError"
            return web.json_response({"errorType": kind}, headers={"X-Fc-Error-Type": kind})
        if fault == "hangs":
            await asyncio.sleep(_HANG_S)
        elif fault == "reset" and request.transport is not None:
            request.transport.abort()
        return web.Response(text="<html>welcome</html>")
