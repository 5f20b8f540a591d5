"""What `register_serverless` puts into a worker's attribute: a serverless function as a callable.

A call gives a `Promise`: async methods await it, plain ones `get` it. It follows the same rules as a reward's
(`HttpFunction`), but for the circuit: there is no other path, so that each call has its whole time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

import msgspec

from rollart_hpc.config.serverless import HTTP, ServerlessSection, no_trigger, url_fault
from rollart_hpc.errors import ConfigError, RewardFault
from rollart_hpc.rewards.attempt import AttemptError
from rollart_hpc.rewards.http_function import HttpFunction

T = TypeVar("T")


class Promise(Generic[T]):
    """A call that is made when its answer is first waited for, and then once; one that nobody waits for is not made."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._made: asyncio.Task[T] | None = None

    def __await__(self) -> Generator[Any, None, T]:
        if self._made is None:
            self._made = asyncio.ensure_future(self._make())
        return self._made.__await__()


class ServerlessFunction:
    """Calls one HTTP endpoint: JSON of the argument in, JSON of the result out.

    Args:
        declared: the URL of the declaration.
        url: where and how that is served, of the config's ``[serverless]``; the declared one where it has none.
        timeout_s: of one call, all its tries together.
    """

    def __init__(self, declared: str, *, url: ServerlessSection | str | None = None, timeout_s: float) -> None:
        self._declared, self._endpoint, self._timeout_s = declared, url or declared, timeout_s

    def __call__(self, argument: Any) -> Promise[Any]:
        """The function's result, to be awaited or given to `get`.

        Waiting for it raises:
            RewardFault: the URL is none of HTTP, or the endpoint did not answer in time, failed, or answered no JSON.
        """
        return Promise(lambda: self._post(argument))

    async def _post(self, argument: Any) -> Any:
        endpoint = self._endpoint
        if isinstance(endpoint, str):
            if not endpoint.startswith(HTTP):
                raise RewardFault("unreachable", no_trigger(self._declared))
            if fault := url_fault(endpoint):
                raise RewardFault("unreachable", f"{endpoint}: {fault}")
            endpoint = ServerlessSection(url=endpoint)
        body = msgspec.json.encode(argument)
        try:
            async with HttpFunction(endpoint) as function:
                return await function.call(
                    body, key=uuid.uuid4().hex, read=msgspec.json.decode, timeout_s=self._timeout_s
                )
        except ConfigError as error:
            raise RewardFault("unreachable", str(error)) from error
        except AttemptError as failure:
            cause = failure.cause if failure.cause in {"unreachable", "bad_value"} else "failed"
            raise RewardFault(cause, f"{endpoint.url}: {failure}") from failure
