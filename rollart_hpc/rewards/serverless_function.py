"""What `register_serverless` puts into a worker's attribute: a serverless function as an async callable."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

from rollart_hpc.errors import RewardFault

_FUNCTION_ERROR = "X-Fc-Error-Type"


class ServerlessFunction:
    """Calls one HTTP endpoint: JSON of the argument in, JSON of the result out."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = url
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __call__(self, argument: Any) -> Any:
        """The function's result.

        Raises:
            RewardFault: the endpoint did not answer in time, failed, or answered no JSON.
        """
        body, headers = msgspec.json.encode(argument), {"Content-Type": "application/json"}
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(self.url, data=body, headers=headers) as response,
            ):
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RewardFault("unreachable", f"{self.url}: {error!r}") from error
        if response.status != 200 or _FUNCTION_ERROR in response.headers:
            raise RewardFault("failed", f"{self.url}: status {response.status}: {answer[:200]!r}")
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError as error:
            raise RewardFault("bad_value", f"{self.url}: {error}: {answer[:200]!r}") from error
