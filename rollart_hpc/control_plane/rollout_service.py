"""RolloutService: the scheduler's hands (paper section 6.1).

    stream ──▶ scheduler ──▶ journal ──▶ acknowledge
                  │
                  └── orders ──▶ one queue per environment worker ──▶ play / abort

Consumes finished trajectories and turn logs from the stream, and changes of the live view; produces tickets, aborts
and the journal; waits for the stream and for the workers' acknowledgements; woken by each of them. What the scheduler
decided is in the journal before anybody acts on it, and a finished trajectory before it is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StreamConfig

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView, expel
from rollart_hpc.bus.pull import PullConsumer
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.control_plane.environment_worker import EnvironmentCls
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.journal import Journal
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.errors import BusError, WaitTimeout
from rollart_hpc.types import Role, Ticket, Trajectory, TurnLog

_log = logging.getLogger(__name__)
_MAX_UNACKNOWLEDGED = 4096
_ACK_WAIT_S = 60
_STREAM_BYTES = 1 << 30
_REPORT_AFTER_S = 30.0
_HAND_IN_S = 8.0
"""For an environment worker to hand in what it plays."""
_DRAIN_S = 5.0
_LOOK_AGAIN_S = 0.1
_CALL_BYTES = 1024
"""What a call adds to its arguments, at most."""

Listener = Callable[[Trajectory], None]
FoundT = TypeVar("FoundT")


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

    def admit(self) -> None:
        """Trajectories may be handed out from now on."""
        self._scheduler.admit()
        self._act()

    def close(self) -> None:
        """Nothing is handed out any more."""
        self._scheduler.close()

    async def hand_in(self) -> int:
        """After `close`: brings everything that is being played into the journal, as far as it got.

        Returns:
            The number of running trajectories whose turns were handed in.
        """
        handed_in = await hand_in(self._bus, self._view, list(self._queues))
        deadline = time.monotonic() + _DRAIN_S
        while await num_waiting(self._bus) and time.monotonic() < deadline:
            self._progress.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._progress.wait(), _LOOK_AGAIN_S)
        if waiting := await num_waiting(self._bus):
            _log.warning("%d trajectories came back and could not be journaled in time; they play again", waiting)
        return handed_in

    def generation_confirmed(self, version: int) -> None:
        """Tells the scheduler and acts on what it decides."""
        self._scheduler.generation_confirmed(version)
        self._act()
        self._progress.set()

    def trained(self, batch: list[Group]) -> None:
        """Tells the scheduler; the ends are durable before a checkpoint of this step can be complete."""
        self._scheduler.trained(batch)
        self._act(durable=True)

    async def get_batch(self) -> list[Group]:
        """Waits for the trainer's next batch (step 1 of the protocol); it is in the journal when it is returned.

        Raises:
            WaitTimeout: no trajectory came back for `stall_timeout_s`; the text says what is missing and where.
        """
        batch = await self._until(
            self._scheduler.form_batch, "the next batch", look_again_s=lambda: self._scheduler.patience_s
        )
        self._act(durable=True)
        return batch

    async def loadable(self, version: int) -> None:
        """Waits until generation workers may load a version: with ``overlap = "step"`` until a batch is played whole.

        Raises:
            WaitTimeout: as in `get_batch`.
        """
        await self._until(lambda: self._scheduler.may_load(version) or None, f"version {version} to be loaded after it")

    @asynccontextmanager
    async def loading(self, version: int) -> AsyncGenerator[None]:
        """Waits for `loadable`; inside, no batch begins that would be played by two versions."""
        await self.loadable(version)
        self._scheduler.hold(version)
        try:
            yield
        finally:
            self._scheduler.release()
            self._act()

    async def _until(
        self,
        look: Callable[[], FoundT | None],
        what: str,
        *,
        look_again_s: Callable[[], float | None] = lambda: None,
    ) -> FoundT:
        """Waits for something that what comes back brings about; says what is missing meanwhile.

        ``look_again_s`` is after how long it may be there though nothing came back, None for never.
        """
        loop = asyncio.get_running_loop()
        last_progress = loop.time()
        while (found := look()) is None:
            self._act()
            self._progress.clear()
            report_after_s = min(_REPORT_AFTER_S, self._stall_timeout_s)
            again_s = look_again_s()
            try:
                async with asyncio.timeout(report_after_s if again_s is None else min(again_s, report_after_s)):
                    await self._progress.wait()
                last_progress = loop.time()
            except TimeoutError:
                waited = loop.time() - last_progress
                if waited < report_after_s:
                    continue
                _log.warning("no trajectory for %.0f s, for %s: %s", waited, what, self._scheduler.waiting_for())
                if waited >= self._stall_timeout_s:
                    raise WaitTimeout(self._scheduler.waiting_for(), "the rollout", self._stall_timeout_s) from None
        return found

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
        prefix = subjects.turn_logs("")
        if message.subject.startswith(prefix):
            self._scheduler.handed_in(codec.decode(message.data, TurnLog), message.subject.removeprefix(prefix))
            return
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
                for part in _sendable(tickets):
                    queue.put_nowait(part)
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
        if after is not None and after.leaving:
            self._scheduler.worker_leaving(after.member_id)

    def _joined(self, member: Member) -> None:
        if self._group is None or member.member_id in self._queues:
            return
        self._queues[member.member_id] = asyncio.Queue()
        self._senders[member.member_id] = self._group.create_task(self._send(member.member_id))
        self._scheduler.worker_joined(member.member_id, 0 if member.leaving else member.capacity)
        self._act()

    def _lost(self, member: Member) -> None:
        _log.warning(
            "environment worker %s %s again",
            member.member_id,
            "left; others go on with what it played, what it had not begun is dispatched"
            if member.leaving
            else "ended; what it played is dispatched",
        )
        self._queues.pop(member.member_id, None)
        if sender := self._senders.pop(member.member_id, None):
            sender.cancel()
        ended = self._scheduler.worker_left if member.leaving else self._scheduler.worker_lost
        ended(member.member_id)
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


async def hand_in(bus: Bus, view: MemberView, workers: Sequence[str]) -> int:
    """Has environment workers hand in what they play; returns how many running trajectories came as turn logs."""
    players = Cluster(EnvironmentCls, bus, view, deadline_s=_HAND_IN_S)

    async def ask(worker: str) -> int:
        try:
            return len(await players.call_one(worker, EnvironmentCls.hand_in))
        except BusError as error:
            _log.warning("%s did not hand in what it plays, which starts again on resume: %r", worker, error)
            return 0

    count = sum(await asyncio.gather(*map(ask, workers)))
    _log.info("%d running trajectories were handed in by %d workers", count, len(workers))
    return count


async def num_waiting(bus: Bus) -> int:
    """Messages of the stream that are not acknowledged yet."""
    info = await bus.js.consumer_info(subjects.TRAJECTORY_STREAM, subjects.TRAJECTORY_CONSUMER)
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


def _sendable(tickets: list[Ticket]) -> list[list[Ticket]]:
    """Tickets that go together; one with a turn log goes alone, without it if the bus cannot carry that."""
    plain = [ticket for ticket in tickets if ticket.log is None]
    alone = [ticket if _fits(ticket) else msgspec.structs.replace(ticket, log=None) for ticket in tickets if ticket.log]
    return [*([plain] if plain else []), *([ticket] for ticket in alone)]


def _fits(ticket: Ticket) -> bool:
    return len(codec.encode(ticket)) + _CALL_BYTES <= MAX_PAYLOAD_BYTES


async def open_stream(bus: Bus) -> None:
    """Creates the trajectories' stream and its consumer; nothing when they are there."""
    await bus.js.add_stream(
        StreamConfig(
            name=subjects.TRAJECTORY_STREAM,
            subjects=list(subjects.TRAJECTORY_SUBJECTS),
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
