"""The real scheduler in virtual time: trajectories take what a test says, batches are trained at once."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.recovery import Recovery
from rollart_hpc.control_plane.rollout_scheduler import RolloutScheduler
from rollart_hpc.types import Ticket, Trajectory
from tests.builders import trajectory

Play = Callable[[Ticket], tuple[float, str]]
"""Seconds that a ticket's trajectory takes, and its failure or nothing."""


@dataclass
class VirtualRollout:
    """Goes on from event to event."""

    config: RunConfig
    play: Play
    slots: int = 1000
    now: float = 0.0
    tickets: list[Ticket] = field(default_factory=list[Ticket])
    """All that were sent."""
    batches: list[tuple[float, list[Group]]] = field(default_factory=list[tuple[float, list[Group]]])
    """With the time of each."""
    _events: list[tuple[float, int, Ticket, str]] = field(default_factory=list[tuple[float, int, Ticket, str]])

    def __post_init__(self) -> None:
        self.scheduler = RolloutScheduler(self.config, Recovery(step=0), clock=lambda: self.now)
        self.scheduler.admit()
        self.scheduler.worker_joined("w", self.slots)
        self.scheduler.generation_confirmed(0)
        self._act()

    def until(self, num_batches: int) -> None:
        """Plays until so many batches are trained."""
        while len(self.batches) < num_batches:
            self.now, _, ticket, failure = heapq.heappop(self._events)
            self.scheduler.finished(self._returned(ticket, failure))
            while batch := self.scheduler.form_batch():
                self.batches.append((self.now, batch))
                self.scheduler.trained(batch)
                self.scheduler.generation_confirmed(self.scheduler.trainer_version)
            self._act()

    def _returned(self, ticket: Ticket, failure: str) -> Trajectory:
        version = ticket.admitted_version
        return trajectory(ticket, version=version, failure=failure, failure_detail=failure and "no answer")

    def _act(self) -> None:
        orders = self.scheduler.take_orders()
        aborted = {one for ids in orders.aborts.values() for one in ids}
        self._events = [event for event in self._events if event[2].trajectory_id not in aborted]
        heapq.heapify(self._events)
        for ticket in (ticket for tickets in orders.tickets.values() for ticket in tickets):
            self.tickets.append(ticket)
            duration_s, failure = self.play(ticket)
            heapq.heappush(self._events, (self.now + duration_s, len(self.tickets), ticket, failure))
