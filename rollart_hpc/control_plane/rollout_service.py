"""RolloutService: the scheduler's hands (paper section 6.1).

    stream ──▶ scheduler ──▶ journal ──▶ acknowledge
                  │
                  └── orders ──▶ one queue per environment worker ──▶ play / abort

Consumes finished trajectories from the stream and changes of the live view; produces tickets, aborts and the
journal; waits for the stream and for the workers' acknowledgements; woken by each of them. What the scheduler
decided is in the journal before anybody acts on it, and a finished trajectory before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StreamConfig

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView, expel
from rollart_hpc.bus.pull import PullConsumer
from rollart_hpc.control_plane.environment_worker import EnvironmentCls
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.journal import Journal
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.errors import BusError, WaitTimeout
from rollart_hpc.types import Role, Ticket, Trajectory

_log = logging.getLogger(__name__)
_MAX_UNACKNOWLEDGED = 4096
_ACK_WAIT_S = 60
_STREAM_BYTES = 1 << 30
_REPORT_AFTER_S = 30.0

Listener = Callable[[Trajectory], None]


class RolloutService:
    """Runs the rollout; `run` must be running."""

    def __init__(
        self,
        bus: Bus,
        view: MemberView,
        scheduler: RolloutScheduler,
        journal: Journal,
        *,
        on_finished: Listener,
        stall_timeout_s: float,
    ) -> None:
        self._bus, self._view = bus, view
        self._scheduler, self._journal = scheduler, journal
        self._on_finished = on_finished
        self._stall_timeout_s = stall_timeout_s
        self._players = Cluster(EnvironmentCls, bus, view)
        self._queues: dict[str, asyncio.Queue[list[Ticket] | list[str]]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._progress = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Serves until cancelled."""
        await open_stream(self._bus)
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._view.listen(self._member_changed)
            for member in self._view.of_role(Role.ENVIRONMENT):
                self._joined(member)
            group.create_task(self._collect())

    def generation_confirmed(self, version: int) -> None:
        """Tells the scheduler and acts on what it decides."""
        self._scheduler.generation_confirmed(version)
        self._act()

    def trained(self, batch: list[Group]) -> None:
        """Tells the scheduler and acts on what it decides."""
        self._scheduler.trained(batch)
        self._act()

    async def get_batch(self) -> list[Group]:
        """Waits for the trainer's next batch (step 1 of the protocol).

        Raises:
            WaitTimeout: no trajectory came back for `stall_timeout_s`; the text says what is missing and where.
        """
        loop = asyncio.get_running_loop()
        last_progress = loop.time()
        while (batch := self._scheduler.form_batch()) is None:
            self._act()
            self._progress.clear()
            try:
                async with asyncio.timeout(min(_REPORT_AFTER_S, self._stall_timeout_s)):
                    await self._progress.wait()
                last_progress = loop.time()
            except TimeoutError:
                waited = loop.time() - last_progress
                _log.warning("no trajectory for %.0f s: %s", waited, self._scheduler.waiting_for())
                if waited >= self._stall_timeout_s:
                    raise WaitTimeout(self._scheduler.waiting_for(), "the rollout", self._stall_timeout_s) from None
        self._act()
        return batch

    async def _collect(self) -> None:
        consumer = PullConsumer(self._bus, subjects.TRAJECTORY_STREAM, subjects.TRAJECTORY_CONSUMER)
        await consumer.start()
        while True:
            messages = await consumer.read()
            for message in messages:
                self._take(message)
            self._act(durable=True)
            for message in messages:
                await message.ack()
            self._progress.set()

    def _take(self, message: Msg) -> None:
        trajectory = codec.decode(message.data, Trajectory)
        if self._scheduler.finished(trajectory):
            self._on_finished(trajectory)

    def _act(self, *, durable: bool = False) -> None:
        """Journals what the scheduler decided, then queues it for the workers."""
        orders = self._scheduler.take_orders()
        if orders.records:
            self._journal.append(orders.records, durable=durable)
        for worker, tickets in orders.tickets.items():
            if queue := self._queues.get(worker):
                queue.put_nowait(tickets)
        for worker, trajectory_ids in orders.aborts.items():
            if queue := self._queues.get(worker):
                queue.put_nowait(trajectory_ids)

    def _member_changed(self, before: Member | None, after: Member | None) -> None:
        member = after or before
        if member is None or member.role is not Role.ENVIRONMENT:
            return
        if before is not None and (after is None or after.incarnation != before.incarnation):
            self._lost(before)
        if after is not None and (before is None or after.incarnation != before.incarnation):
            self._joined(after)

    def _joined(self, member: Member) -> None:
        if self._group is None or member.member_id in self._queues:
            return
        self._queues[member.member_id] = asyncio.Queue()
        self._senders[member.member_id] = self._group.create_task(self._send(member.member_id))
        self._scheduler.worker_joined(member.member_id, member.capacity)
        self._act()

    def _lost(self, member: Member) -> None:
        _log.warning("environment worker %s ended; what it played is dispatched again", member.member_id)
        self._queues.pop(member.member_id, None)
        if sender := self._senders.pop(member.member_id, None):
            sender.cancel()
        self._scheduler.worker_lost(member.member_id)
        self._act()
        self._progress.set()

    async def _send(self, worker: str) -> None:
        """One worker's orders, in order."""
        queue = self._queues[worker]
        while True:
            order = await queue.get()
            try:
                if order and isinstance(order[0], Ticket):
                    await self._players.call_one(worker, EnvironmentCls.play, order)  # pyright: ignore[reportArgumentType]
                else:
                    await self._players.call_one(worker, EnvironmentCls.abort, order)  # pyright: ignore[reportArgumentType]
            except BusError as error:
                _log.warning("%s is expelled, orders did not arrive: %s", worker, error)
                await expel(self._bus, worker)
                return


async def open_stream(bus: Bus) -> None:
    """Creates the trajectories' stream and its consumer; nothing when they are there."""
    await bus.js.add_stream(
        StreamConfig(
            name=subjects.TRAJECTORY_STREAM,
            subjects=[subjects.TRAJECTORY_SUBJECTS],
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
            max_bytes=_STREAM_BYTES,
            duplicate_window=600,
        )
    )
    await bus.js.add_consumer(
        subjects.TRAJECTORY_STREAM,
        ConsumerConfig(
            durable_name=subjects.TRAJECTORY_CONSUMER,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_ACK_WAIT_S,
            max_ack_pending=_MAX_UNACKNOWLEDGED,
        ),
    )
