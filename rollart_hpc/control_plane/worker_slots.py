"""What the environment workers have room for, and which trajectories each of them holds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class _Slots:
    capacity: int
    held: set[str] = field(default_factory=set[str])

    @property
    def free(self) -> int:
        return self.capacity - len(self.held)


class WorkerSlots:
    """The slots of all live environment workers."""

    def __init__(self) -> None:
        self._workers: dict[str, _Slots] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, worker: str, capacity: int) -> None:
        """A worker that holds nothing yet."""
        self._workers[worker] = _Slots(capacity=capacity)

    def close(self, worker: str) -> None:
        """It gets nothing more; what it holds it keeps."""
        if worker in self._workers:
            self._workers[worker].capacity = 0

    def remove(self, worker: str) -> list[str]:
        """Takes a worker off; what it held, in a stable order."""
        slots = self._workers.pop(worker, None)
        return sorted(slots.held) if slots is not None else []

    def freest(self) -> str | None:
        """The worker with the most free slots, the first of several; None when none has one."""
        best = max(self._workers, key=lambda worker: self._workers[worker].free, default=None)
        return best if best is not None and self._workers[best].free > 0 else None

    def hold(self, worker: str, trajectory_id: str) -> None:
        """A live worker is given a trajectory."""
        self._workers[worker].held.add(trajectory_id)

    def release(self, worker: str | None, trajectory_id: str) -> None:
        """A worker has it no more; nothing when the worker is gone."""
        if worker in self._workers:
            self._workers[worker].held.discard(trajectory_id)
