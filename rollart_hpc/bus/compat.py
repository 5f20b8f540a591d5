"""What nats-py needs to be cancelled reliably on Python 3.11; nothing on later versions.

``asyncio.wait_for`` of Python 3.11 drops a cancellation that arrives in the same moment as the awaited result
(cpython issue 86296), so that a cancelled service goes on and its TaskGroup waits for ever. nats-py uses it for
every wait. The version of 3.12, which is built on ``asyncio.timeout``, does not have the fault.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def _wait_for(awaitable: Awaitable[T], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await awaitable


def fix_wait_for() -> None:
    """Replaces ``asyncio.wait_for`` in this process, on Python 3.11."""
    if sys.version_info < (3, 12):
        asyncio.wait_for = _wait_for  # pyright: ignore[reportAttributeAccessIssue]
