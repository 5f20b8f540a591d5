"""The resource plane at work: pools and members in, bindings out (paper section 5.2).

Consumes the live views of pools and members, and the profiler's choice; produces the bindings in the bus, their
history and a snapshot of everything in the attempt's directory; waits for changes; woken by them. One owner: a second
controller takes the bindings over, and the first one ends.

The bus may be away and the disk full: both are told in the log, and made up for when they are back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
from nats.errors import Error as NatsError

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.lease import Lease, LiveView
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.declared_affinity import declared_affinity, declared_serverless
from rollart_hpc.errors import WaitTimeout
from rollart_hpc.observe.growing_file import GrowingFile, free_space
from rollart_hpc.resource_plane.binding import Declared, Demands, bind, changes
from rollart_hpc.resource_plane.hardware import hardware_class
from rollart_hpc.resource_plane.records import Binding, Pool, RoleBindings
from rollart_hpc.resource_plane.snapshot import HISTORY, SNAPSHOT, PoolState, ResourceSnapshot, write_snapshot
from rollart_hpc.types import Role

_log = logging.getLogger(__name__)
_WRITE_EVERY_S = 0.5
_JOIN_AGAIN_S = 0.5
_PROFILER = "the profiler"


class ResourceService:
    """Binds each role's work to hardware; `run` must be running."""

    def __init__(self, bus: Bus, view: MemberView, config: RunConfig, directory: Path, attempt: int) -> None:
        """``directory`` is that of the attempt; ``view`` is run by the caller.

        Raises:
            ConfigError: a worker class of the config cannot be imported.
        """
        self._view, self._config, self._directory, self._attempt = view, config, directory, attempt
        self._declared, self._serverless = declared_affinity(config), declared_serverless(config)
        self._pools: LiveView[Pool] = LiveView(bus, subjects.POOLS_BUCKET, Pool)
        self._history = GrowingFile(directory / HISTORY)
        self._unwritten: list[Binding] = []
        self._bindings: dict[Role, dict[str, Binding]] = {}
        self._known: set[str] = set()
        self._preference = Declared(hardware={}, source=_PROFILER)
        self._is_warned = False
        self._writing, self._written_at = threading.Lock(), 0.0
        self._moved, self._to_write = asyncio.Event(), asyncio.Event()
        self._rebound = {role: asyncio.Event() for role in Role}
        self._incarnation = secrets.token_hex(8)
        self._leases = {
            role: Lease(bus, subjects.BINDINGS_BUCKET, str(role), RoleBindings(role=role, by_tag={})) for role in Role
        }
        view.listen(self._member_changed)
        self._pools.listen(self._pool_changed)
        self._bind()

    @property
    def bindings(self) -> Mapping[Role, Mapping[str, Binding]]:
        """The bindings now, by role and tag."""
        return self._bindings

    def prefer(self, mapping: Mapping[str, str], reason: str) -> None:
        """The profiler's choice of a hardware class by tag, over every declaration; an empty one takes it back."""
        self._preference = Declared(hardware=dict(mapping), source=_PROFILER, reason=reason)
        self._bind()

    def planned(self, role: Role) -> int:
        """Workers of a role that should be there now: what the leader says of each pool, else the config."""
        records = self._pools.all()
        counts = [
            records[name].planned.get(role, 0) if name in records else int(getattr(pool, str(role)))
            for name, pool in self._config.pools.items()
        ]
        return sum(counts)

    async def wait_for_workers(self, deadline_s: float) -> None:
        """Waits for every worker that is planned; at the deadline goes on without those that could be replaced.

        Raises:
            WaitTimeout: a trainer, or every worker of another role, was not there in time.
        """
        try:
            async with asyncio.timeout(deadline_s):
                while any(self._missing().values()):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            for role, missing in self._missing().items():
                present = [member.member_id for member in self._view.of_role(role)]
                if missing and (role is Role.ACTOR_TRAIN or not present):
                    what = f"{self.planned(role)} {role} workers, of which {present} joined"
                    raise WaitTimeout(what, str(role), deadline_s) from None
            _log.warning("going on after %g s without %s", deadline_s, _in_words(self._missing()))

    async def run(self) -> None:
        """Publishes and records until cancelled.

        Raises:
            FencedError: another controller has taken the bindings over.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pools.run())
                group.create_task(self._write())
                for role in Role:
                    group.create_task(self._publish(group, role))
        finally:
            self._write_files(self._snapshot())
            self._history.close()

    def _missing(self) -> dict[Role, int]:
        return {role: max(0, self.planned(role) - len(self._view.of_role(role))) for role in Role}

    def _member_changed(self, before: Member | None, after: Member | None) -> None:
        if before is None or after is None or _place(before) != _place(after):
            self._bind()
        self._tell()

    def _pool_changed(self, _before: Pool | None, _after: Pool | None) -> None:
        self._tell()

    def _tell(self) -> None:
        self._moved.set()
        self._to_write.set()

    def _bind(self) -> None:
        before, members = self._bindings, self._view.all().values()
        demands = Demands.of(self._config, [self._preference, *self._declared], self._serverless)
        self._bindings = bind(demands, members, before, known=self._known, at=time.time())
        self._known |= {member.hardware for member in members if member.role is Role.ACTOR_GEN}
        for binding in changes(before, self._bindings):
            self._unwritten.append(binding)
            self._rebound[binding.role].set()
            _log.info("%s of %s: %s", binding.tag, binding.role, binding.reason)
        self._to_write.set()

    def _record(self, role: Role) -> RoleBindings:
        return RoleBindings(role=role, by_tag=self._bindings[role], incarnation=self._incarnation)

    async def _publish(self, group: asyncio.TaskGroup, role: Role) -> None:
        """Puts a role's bindings into the bus at each change; what the bus did not take goes with the next renewal."""
        lease, rebound = self._leases[role], self._rebound[role]
        lease.record = self._record(role)
        while True:
            try:
                await lease.join()
                break
            except (NatsError, TimeoutError) as error:
                _log.warning("the bindings of %s are not in the bus yet: %r", role, error)
                await asyncio.sleep(_JOIN_AGAIN_S)
        group.create_task(lease.run(lambda: self._record(role)))
        while True:
            await rebound.wait()
            rebound.clear()
            try:
                await lease.update(self._record(role))
            except (NatsError, TimeoutError) as error:
                _log.warning("the bindings of %s are renewed later: %r", role, error)

    async def _write(self) -> None:
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            await asyncio.to_thread(self._write_files, self._snapshot())
            await asyncio.sleep(_WRITE_EVERY_S)

    def _snapshot(self) -> ResourceSnapshot:
        members = sorted(self._view.all().values(), key=lambda one: (one.role, one.rank, one.member_id))
        present = Counter((member.pool, member.role) for member in members)

        def state(pool: Pool) -> PoolState:
            return PoolState(
                name=pool.name,
                hardware=hardware_class(pool.hardware, self._config.hardware.get(pool.hardware)),
                partition=pool.partition,
                guest=pool.guest,
                planned=pool.planned,
                present={role: present[pool.name, role] for role in pool.planned},
            )

        return ResourceSnapshot(
            attempt=self._attempt,
            at=time.time(),
            pools=[state(pool) for _, pool in sorted(self._pools.all().items())],
            members=members,
            bindings=[binding for by_tag in self._bindings.values() for binding in by_tag.values()],
        )

    def _write_files(self, snapshot: ResourceSnapshot) -> None:
        """A disk that does not take them costs no more than a warning."""
        with self._writing:
            unwritten, self._unwritten = self._unwritten, []
            self._history.write(b"".join(msgspec.json.encode(binding) + b"\n" for binding in unwritten))
            # The thread that was at it when the service ended may come second.
            if snapshot.at < self._written_at:
                return
            self._written_at = snapshot.at
            try:
                write_snapshot(self._directory, snapshot)
                self._is_warned = False
            except OSError as error:
                if not self._is_warned:
                    _log.warning(
                        "%s CANNOT BE WRITTEN: %s; %s; it is as it was before",
                        self._directory / SNAPSHOT, error.strerror, free_space(self._directory),
                    )  # fmt: skip
                self._is_warned = True


def _place(member: Member) -> tuple[str, bool]:
    """What of a member decides about bindings."""
    return member.hardware, member.leaving


def _in_words(missing: Mapping[Role, int]) -> str:
    return ", ".join(f"{count} {role} workers" for role, count in missing.items() if count)
