"""A reward function as an HTTP service: on a laptop, in a container, as a serverless function (paper R3).

The other end of `RewardClient`. ``POST /`` (and ``/invoke``, as Function Compute calls event functions) takes an
`Episode` as JSON and answers a `Score`; ``GET /health`` says what was done. Invariants:

- The function runs in processes that can be killed (`LocalRewardPool`): one that hangs costs its own call.
- Calls of one idempotency key are computed once (`AnsweredCalls`).
- A fault is status 500 with a JSON error and the header of a function error; never a score.
- On SIGTERM it takes no more calls and ends when those that it has are answered, at the latest after ``timeout_s``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from rollart_hpc.errors import RewardFault
from rollart_hpc.rewards.answered_calls import AnsweredCalls, KeyReusedError
from rollart_hpc.rewards.attempt import FUNCTION_ERROR_HEADERS
from rollart_hpc.rewards.local_pool import LocalRewardPool
from rollart_hpc.rewards.payload import PayloadError, read_body
from rollart_hpc.rewards.signature import KEY_HEADER, refusal, sha256

_TASK = "served"
_STATUS_HEADER = "X-Fc-Status"
"""Function Compute takes its value for the outcome of the function."""
_TYPES = {"raised": "HandledError", "bad_value": "HandledError", "unsendable": "HandledError"}
"""By cause: the function would fail again. All others are unhandled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFunction:
    """What is served, and to whom."""

    entry_point: str
    arguments: Mapping[str, Any]
    timeout_s: float
    """Of one call."""
    num_processes: int
    bearer: str | None = None
    secret: str | None = None
    references: Path | None = None
    """Directory whose files are read for episodes that come by reference."""
    max_body_bytes: int = 32 << 20
    max_answers: int = 100_000
    """Scores that are kept for calls that come again."""


class RewardServer:
    """Answers requests; `app` is the ASGI application, ``async with`` starts and ends what it needs."""

    def __init__(self, served: ServedFunction) -> None:
        self._served = served
        self._pool = LocalRewardPool(
            {_TASK: served.entry_point},
            timeout_s=served.timeout_s,
            arguments={_TASK: served.arguments},
            num_children=served.num_processes,
        )
        self._num_scored, self._num_faults, self._num_refused = 0, 0, 0
        self._answers: AnsweredCalls | None = None
        self.app = Starlette(
            routes=[
                Route("/", self._score, methods=["POST"]),
                Route("/invoke", self._score, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ]
        )
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Starts the function's processes.

        Raises:
            ConfigError: it cannot be imported or does not take the arguments.
        """
        await self._open.enter_async_context(self._pool)
        tasks = await self._open.enter_async_context(asyncio.TaskGroup())
        # What is still computed ends in a fault with the pool, and lets the group end.
        self._open.push_async_callback(self._pool.close)
        self._answers = AnsweredCalls(tasks, size=self._served.max_answers)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends them."""
        await self._open.aclose()

    async def _health(self, _: Request) -> Response:
        answers = self._answers
        return _json(
            200,
            {
                "status": "ok",
                "function": self._served.entry_point,
                "scored": self._num_scored,
                "faults": self._num_faults,
                "refused": self._num_refused,
                "repeated": answers.num_repeated if answers else 0,
            },
        )

    async def _score(self, request: Request) -> Response:
        body = await self._body(request)
        if body is None:
            return self._refuse(413, f"a body of more than {self._served.max_body_bytes} bytes")
        if reason := refusal(request.headers, body, bearer=self._served.bearer, secret=self._served.secret):
            return self._refuse(401, reason)
        if self._answers is None:
            raise RuntimeError("the application has not started")
        key = request.headers.get(KEY_HEADER, "")

        async def compute() -> Any:
            return await self._pool.score(_TASK, await asyncio.to_thread(read_body, body, self._served.references))

        try:
            score = await self._answers.score(key, sha256(body), compute)
        except PayloadError as error:
            return self._refuse(400, str(error))
        except KeyReusedError:
            return self._refuse(422, f"the {KEY_HEADER} {key!r} came with another body before; give each call its own")
        except RewardFault as fault:
            self._num_faults += 1
            kind = _TYPES.get(fault.cause, "UnhandledError")
            error = {"errorType": fault.cause, "errorMessage": str(fault)}
            return _json(500, error, {FUNCTION_ERROR_HEADERS[0]: kind, _STATUS_HEADER: "404"})
        self._num_scored += 1
        return _json(200, score, {_STATUS_HEADER: "200"})

    async def _body(self, request: Request) -> bytes | None:
        """The body; None for one that is too large, of which no more is read."""
        body = bytearray()
        with contextlib.suppress(ClientDisconnect):
            async for chunk in request.stream():
                body += chunk
                if len(body) > self._served.max_body_bytes:
                    return None
        return bytes(body)

    def _refuse(self, status: int, reason: str) -> Response:
        self._num_refused += 1
        return _json(status, {"errorType": "refused", "errorMessage": reason}, {_STATUS_HEADER: "404"})


def _json(status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


class _Uvicorn(uvicorn.Server):
    """Ends in order on a signal, and then as a program that did its work."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """See `uvicorn.Server.capture_signals`, which raises the signal again at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        yield

    def _end(self) -> None:
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any.

    Raises:
        OSError: the address is not this machine's, or is taken.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=1024)


async def serve(served: ServedFunction, listening: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serves until a signal ends it.

    Args:
        served: what is served.
        listening: where.
        on_ready: called when requests are answered.

    Raises:
        ConfigError: the function cannot be imported or does not take the arguments.
    """
    async with RewardServer(served) as server:
        grace_s = math.ceil(served.timeout_s) + 1
        config = uvicorn.Config(
            server.app, log_level="warning", access_log=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=grace_s,
        )  # fmt: skip
        on_ready()
        await _Uvicorn(config).serve(sockets=[listening])
