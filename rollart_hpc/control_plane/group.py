"""Group: the trajectories of one seed that are compared with each other (GRPO's group)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollart_hpc.types import Trajectory


@dataclass(slots=True, kw_only=True)
class Running:
    """A member that is being played."""

    place: int
    """Which of the group's size + redundancy places it fills."""
    tries: int
    """How often this place was filled before, for reasons of the environment."""
    dispatched_version: int
    """Version of the generation workers when its ticket was made: it starts with this one or later."""
    worker: str | None = None
    """Environment worker that holds its ticket; None while no slot is free."""


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
    num_dispatched: int = 0

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
    def size_bytes(self) -> int:
        """Bytes that its finished members hold."""
        return sum(
            trajectory.token_ids.nbytes + trajectory.loss_mask.nbytes + trajectory.logprobs.nbytes
            for trajectory in self.finished
        )
