"""SampleBuffer: complete groups that wait for training, oldest first (paper section 6.2).

Invariants: only complete groups enter; no group whose oldest member is older than the bound leaves into a batch;
the number of groups is bounded by admission (`RolloutScheduler`), their bytes are counted here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from rollart_hpc.control_plane.group import Group


class SampleBuffer:
    """Complete groups by task."""

    def __init__(self, tasks: Iterable[str], clock: Callable[[], float]) -> None:
        """``clock`` gives seconds; it stamps the groups that enter."""
        self._clock = clock
        self._groups: dict[str, deque[Group]] = {task: deque() for task in tasks}
        self.size_bytes = 0

    def put(self, group: Group) -> None:
        """Takes a complete group.

        Raises:
            ValueError: it lacks members.
        """
        if not group.is_complete:
            raise ValueError(f"{group.group_id} has {len(group.finished)} of {group.size} members")
        group.completed_s = self._clock()
        self._groups[group.task].append(group)
        self.size_bytes += group.size_bytes

    def count(self, task: str) -> int:
        """Waiting groups of a task."""
        return len(self._groups[task])

    def groups(self) -> list[Group]:
        """All waiting groups."""
        return [group for waiting in self._groups.values() for group in waiting]

    def evict(self, oldest_allowed: int) -> list[Group]:
        """Removes and returns the groups with a member started before version ``oldest_allowed``."""
        stale = [group for group in self.groups() if group.oldest_version < oldest_allowed]
        for group in stale:
            self._remove(group)
        return stale

    def ready(self, quota: Mapping[str, int]) -> bool:
        """Whether every task has its share of a batch."""
        return all(self.count(task) >= count for task, count in quota.items())

    def missing(self, quota: Mapping[str, int]) -> dict[str, int]:
        """Groups that are still wanted for a batch, by task."""
        return {task: count - self.count(task) for task, count in quota.items() if self.count(task) < count}

    def take(self, quota: Mapping[str, int]) -> list[Group]:
        """Removes and returns one batch: of each task the groups that will be stale first, then those opened first.

        Raises:
            ValueError: it is not `ready`.
        """
        if not self.ready(quota):
            raise ValueError(f"no batch yet; missing {self.missing(quota)}")
        batch = [
            group
            for task, count in quota.items()
            for group in sorted(self._groups[task], key=lambda group: (group.oldest_version, group.index))[:count]
        ]
        for group in batch:
            self._remove(group)
        return batch

    def _remove(self, group: Group) -> None:
        self._groups[group.task].remove(group)
        self.size_bytes -= group.size_bytes
