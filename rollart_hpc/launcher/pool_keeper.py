"""The leader's pools in the live view: how many workers of each should be there now.

A worker that ends again and again is given up while its role has another one: the run shrinks, and does not stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

import msgspec
from nats.errors import Error as NatsError

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.lease import Lease
from rollart_hpc.bus.membership import Member
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import BusError
from rollart_hpc.launcher.plan import WorkerPlan
from rollart_hpc.resource_plane.records import Pool
from rollart_hpc.types import Role

_log = logging.getLogger(__name__)


class PoolKeeper:
    """Leases the record of each pool of the config; `join` once, then keep `run` running."""

    def __init__(self, config: RunConfig, plans: Sequence[WorkerPlan], bus: Bus) -> None:
        """``plans`` are all workers of the run."""
        self._plans = {plan.member_id: plan for plan in plans}
        self._guests: dict[str, Member] = {}
        counts = Counter((plan.pool, plan.role) for plan in plans)
        self._leases: dict[str, Lease[Pool]] = {}
        for name, section in config.pools.items():
            planned = {role: counts[name, role] for role in Role if counts[name, role]}
            partition = section.slurm.partition or ""
            pool = Pool(name=name, hardware=section.hardware, planned=planned, partition=partition)
            self._leases[name] = Lease(bus, subjects.POOLS_BUCKET, name, pool)

    async def join(self) -> None:
        """Puts the pools into the live view.

        Raises:
            BusError: the bus did not take them.
        """
        try:
            for lease in self._leases.values():
                await lease.join()
        except (NatsError, TimeoutError) as error:
            raise BusError(f"the pools could not be put into the bus: {error!r}") from error

    async def run(self) -> None:
        """Renews the records until cancelled.

        Raises:
            FencedError: another leader has taken them over.
        """
        async with asyncio.TaskGroup() as group:
            for lease in self._leases.values():
                group.create_task(lease.run())

    def member_changed(self, before: Member | None, after: Member | None) -> None:
        """A listener for the member view: workers that joined the running run count, too, while they are there."""
        if before is not None and before.guest:
            self._guests.pop(before.member_id, None)
        if after is not None and after.guest and not after.leaving:
            self._guests[after.member_id] = after

    def can_spare(self, plan: WorkerPlan) -> bool:
        """Whether the run can go on without a worker: its role has another one."""
        if not plan.is_replaceable:
            return False
        others = [other for other in self._plans.values() if other.role is plan.role and other != plan]
        return bool(others) or any(guest.role is plan.role for guest in self._guests.values())

    async def give_up(self, plan: WorkerPlan) -> None:
        """Lets the run go on without a worker: it is not planned any more."""
        del self._plans[plan.member_id]
        lease = self._leases[plan.pool]
        planned = lease.record.planned
        pool = msgspec.structs.replace(lease.record, planned={**planned, plan.role: planned[plan.role] - 1})
        try:
            await lease.update(pool)
        except (NatsError, TimeoutError) as error:
            _log.warning("pool %s is renewed later: %r", plan.pool, error)
