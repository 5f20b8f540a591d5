"""Group: the trajectories of one seed that are compared with each other (GRPO's group)."""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

from rollart_hpc.types import Trajectory

_WITNESSED = 16
"""One of so many groups has witnesses."""


@dataclass(slots=True, kw_only=True)
class Running:
    """A member that is being played."""

    place: int
    """Which of the group's size + redundancy places it fills."""
    tries: int
    """How often this place was filled before, for reasons of the environment."""
    dispatched_version: int
    """It starts with this version or a later one; with a turn log, it started with this one."""
    worker: str | None = None
    """Environment worker that holds its ticket; None while no slot is free."""
    sent_s: float | None = None
    """When its ticket went out, by the scheduler's clock; None before, and where it goes on from earlier turns."""


@dataclass(slots=True, kw_only=True)
class Group:
    """One group from its opening until its last member has ended."""

    group_id: str
    task: str
    index: int
    """Of the seed in the task's order."""
    seed: int
    size: int
    opened_version: int
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    finished: list[Trajectory] = field(default_factory=list[Trajectory])
    durations_s: dict[str, float] = field(default_factory=dict[str, float])
    """From ticket to return, by id of the finished member, where it was measured."""
    opened_s: float = 0.0
    """When it was opened, or taken over, by the scheduler's clock."""
    completed_s: float = 0.0
    """When it entered the buffer, by the scheduler's clock."""
    num_dispatched: int = 0
    is_whole: bool = False
    """No member is cut as redundant or by a measured deadline: what they take is what the task takes."""
    is_continued: bool = False
    """An earlier attempt, or a worker that left, began to play it, and that must not be generated again."""

    @property
    def has_witnesses(self) -> bool:
        """Whether its redundant members play on, only to be counted; the same in every attempt."""
        return xxhash.xxh32_intdigest(self.group_id.encode()) % _WITNESSED == 0

    @property
    def is_complete(self) -> bool:
        """Whether all members that a batch needs are there."""
        return len(self.finished) >= self.size

    @property
    def oldest_version(self) -> int:
        """The version that the staleness bound goes by: the oldest of its members."""
        versions = [trajectory.start_version for trajectory in self.finished]
        versions += [member.dispatched_version for member in self.running.values()]
        return min(versions, default=self.opened_version)

    @property
    def in_order(self) -> list[Trajectory]:
        """The finished members in the order of their dispatch, whichever came first."""
        return sorted(self.finished, key=lambda trajectory: int(trajectory.trajectory_id.rpartition(".")[2]))

    @property
    def size_bytes(self) -> int:
        """Bytes that its finished members hold."""
        return sum(
            trajectory.token_ids.nbytes + trajectory.loss_mask.nbytes + trajectory.logprobs.nbytes
            for trajectory in self.finished
        )
