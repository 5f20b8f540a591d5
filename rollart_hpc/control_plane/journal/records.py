"""What the journal says: one record for everything that happens to a group, a trajectory or a batch.

The run's books and the scheduler's state are the fold of these records. Those of one event are written as one
frame (`rollart_hpc.control_plane.journal.segments`), so that no reader ever sees half an event.
"""

from __future__ import annotations

import msgspec

from rollart_hpc.control_plane.task_cursor import Reason
from rollart_hpc.types import Outcome, Trajectory, TurnLog


class AttemptStarted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An attempt goes on from the checkpoint of ``step``. What is pending stays pending, under the same ids."""

    attempt: int
    step: int


class GroupOpened(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A group was opened for a seed; its members follow as `Dispatched`."""

    group_id: str
    task: str
    index: int
    """Of the seed in the task's order."""
    seed: int
    version: int
    """Of the generation workers."""


class Dispatched(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trajectory exists from here on, and is pending until it ends."""

    trajectory_id: str
    group_id: str
    place: int
    """Which of the group's places it fills."""
    tries: int
    """How often that place was filled before, for reasons of the environment."""


class Sent(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trajectory's ticket was given to an environment worker; again in a later attempt if it came to nothing."""

    trajectory_id: str
    worker: str


class HandedIn(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What was played of a running trajectory when the run was told to stop."""

    log: TurnLog


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trajectory came back, scored or failed; at most once for each."""

    trajectory: Trajectory


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trajectory's outcome; exactly one for each that is not pending."""

    trajectory_id: str
    outcome: Outcome
    cause: str = ""


class GivenUp(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A whole group ended untrained: stale, its seed is played again; poisoned, never; truncated, passed over."""

    group_id: str
    outcome: Outcome
    reason: Reason = Reason()


class BatchFormed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """These trajectories, in this order, are the batch of ``step``; durable before it is trained."""

    step: int
    trajectory_ids: tuple[str, ...]


class Published(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The weights of a version, by the digest of their bytes."""

    version: int
    digest: str


Record = (
    AttemptStarted | GroupOpened | Dispatched | Sent | HandedIn | Finished | Ended | GivenUp | BatchFormed | Published
)
