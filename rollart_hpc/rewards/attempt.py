"""One HTTP request to a serverless function, and what its failure means for the next one.

Invariants: a request is one POST, never redirected; an answer is read up to a bound; every failure says whether
the same call may be tried again, and how often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TypeVar

import aiohttp
import msgspec

T = TypeVar("T")
FUNCTION_ERROR_HEADERS = ("X-Fc-Error-Type", "X-Amz-Function-Error")
"""With one of these the function itself failed, whatever the status: the platform gives 200."""
HANDLED = "Handled"
"""Their values begin so where the function raised; it would again."""
_RETRYABLE_STATUSES = frozenset({408, 425, 429, *range(500, 600)})
_TRANSIENT_TRIES = 6
_DIED_TRIES = 2
_MAX_ANSWER_BYTES = 1 << 20
_SHOWN_BYTES = 200
_CAUSES = {408: "timeout", 429: "throttled"}


class AttemptError(Exception):
    """One attempt failed.

    Args:
        cause: its kind, the same for all of the kind.
        text: what happened this time, for people.
        max_tries: how often a call with this failure may be tried in all.
        retry_after_s: the pause that the endpoint asks for.
    """

    def __init__(self, cause: str, text: str, *, max_tries: int = 1, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{cause}: {text}")
        self.cause, self.max_tries, self.retry_after_s = cause, max_tries, retry_after_s


async def attempt(
    http: aiohttp.ClientSession,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    read: Callable[[bytes], T],
    *,
    timeout_s: float,
) -> T:
    """Posts ``body`` and returns what ``read`` makes of the answer.

    Raises:
        AttemptError: there is no answer, it is a failure, or ``read`` raised ValueError, RecursionError or
            MsgspecError.
    """
    timeout = aiohttp.ClientTimeout(total=max(0.001, timeout_s))
    try:
        async with http.post(url, data=body, headers=headers, timeout=timeout, allow_redirects=False) as response:
            answer = await _bounded(response)
    except TimeoutError as error:
        raise AttemptError("timeout", f"no answer within {timeout_s:.3g} s", max_tries=_TRANSIENT_TRIES) from error
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise AttemptError("unreachable", _in_words(error), max_tries=_TRANSIENT_TRIES) from error
    except (aiohttp.ClientError, ValueError) as error:
        raise AttemptError("refused", _in_words(error)) from error
    _check(response.status, response.headers, answer)
    try:
        return read(answer)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise AttemptError("bad_value", f"answer {answer[:_SHOWN_BYTES]!r}: {error}") from error


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    answer = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        answer += chunk
        if len(answer) > _MAX_ANSWER_BYTES:
            raise AttemptError("bad_value", f"an answer of more than {_MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(answer)


def _check(status: int, headers: Mapping[str, str], answer: bytes) -> None:
    shown = f"{answer[:_SHOWN_BYTES]!r}"
    for name in FUNCTION_ERROR_HEADERS:
        if kind := headers.get(name):
            tries = 1 if kind.startswith(HANDLED) else _DIED_TRIES
            raise AttemptError("function error", f"{name}: {kind}: {shown}", max_tries=tries)
    if status == 200:
        return
    raise AttemptError(
        _CAUSES.get(status, f"status {status}"),
        f"status {status}: {shown}",
        max_tries=_TRANSIENT_TRIES if status in _RETRYABLE_STATUSES else 1,
        retry_after_s=seconds_of(headers.get("Retry-After"), time.time()),
    )


def seconds_of(retry_after: str | None, now: float) -> float:
    """The pause that a header ``Retry-After`` asks for: seconds, or an HTTP date; 0 for none and for nonsense."""
    if retry_after is None:
        return 0.0
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return max(0.0, seconds) if seconds < float("inf") else 0.0


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
