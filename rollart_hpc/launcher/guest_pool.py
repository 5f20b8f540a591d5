"""The pool of workers that joined a running run, when it is none of the run's own.

Several processes may add workers to one such pool: one of them owns its record, and another takes it over when that
one has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NoReturn

import msgspec
from nats.errors import Error as NatsError

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.lease import Lease, LiveView
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.errors import ConfigError, FencedError, NameTakenError
from rollart_hpc.launcher.join_checks import JoinRequest
from rollart_hpc.resource_plane.records import Pool

_log = logging.getLogger(__name__)
_LOOK_AGAIN_S = 5.0
_TRY_AGAIN_S = 0.5


@asynccontextmanager
async def guest_pool(bus: Bus, request: JoinRequest, hardware: str) -> AsyncGenerator[None]:
    """Keeps the pool in the live view while the block runs.

    Raises:
        ConfigError: workers of another class have joined as a pool of this name.
    """
    pool = _GuestPool(bus, request, hardware)
    keeping = asyncio.ensure_future(pool.run())
    known = asyncio.ensure_future(pool.is_known.wait())
    try:
        await asyncio.wait({keeping, known}, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        yield
    finally:
        known.cancel()
        keeping.cancel()
        await asyncio.wait({keeping})


class _GuestPool:
    """One process's share in a pool."""

    def __init__(self, bus: Bus, request: JoinRequest, hardware: str) -> None:
        self._bus, self._request = bus, request
        self._pool = Pool(name=request.pool, hardware=hardware, planned={request.role: request.workers}, guest=True)
        self._pools: LiveView[Pool] = LiveView(bus, subjects.POOLS_BUCKET, Pool)
        self._members = MemberView(bus)
        self._moved = asyncio.Event()
        self.is_known = asyncio.Event()
        """The pool is in the live view, whoever owns it."""
        self._pools.listen(lambda _before, _after: self._moved.set())

    async def run(self) -> NoReturn:
        """Owns the record, or waits until it may, until cancelled.

        Raises:
            ConfigError: the pool that is there is of another class.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pools.run())
                group.create_task(self._members.run())
                while True:
                    await self._own()
                    await self._wait_for_change()
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None

    async def _own(self) -> None:
        """Keeps the record as long as it is this process's."""
        lease = Lease(self._bus, subjects.POOLS_BUCKET, self._pool.name, self._pool)
        try:
            await lease.join(exclusively=True)
            self.is_known.set()
            await lease.run(self._now)
        except NameTakenError:
            return
        except (FencedError, NatsError, TimeoutError) as error:
            _log.warning("pool %s is not in the live view by this process: %r", self._pool.name, error)
            await asyncio.sleep(_TRY_AGAIN_S)
        finally:
            await lease.leave()

    async def _wait_for_change(self) -> None:
        """Returns when the other process's record may have ended."""
        self._moved.clear()
        other = self._pools.get(self._pool.name)
        if other is not None and not self.is_known.is_set():
            if other.hardware != self._pool.hardware:
                raise ConfigError(
                    f"--pool {self._pool.name} --hardware {self._pool.hardware}: workers of class {other.hardware} "
                    "have joined as a pool of this name; give another name"
                )
            self.is_known.set()
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._moved.wait()
        except TimeoutError:
            return

    def _now(self) -> Pool:
        """The pool with all that have joined it, whichever process started them."""
        there = Counter(
            member.role
            for member in self._members.all().values()
            if member.guest and not member.leaving and member.pool == self._pool.name
        )
        own = self._request.role
        return msgspec.structs.replace(self._pool, planned={**there, own: max(there[own], self._request.workers)})
