"""Admission: groups of which batches may be opened, and which are too old to be trained (paper section 6.2).

With ``overlap = "step"`` whole batches are admitted: the next one begins when every group of those before is complete,
so that nothing is being played in between. There alone new weights are loaded; a batch is therefore played by one
version, which is one behind that which trains on it. What an earlier attempt left half played is one more batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.task_mix import TaskMix

_ANY_VERSION = -1


class Admission:
    """The bound of the schedule; ``claimed`` counts the groups of each task that are consumed, open or buffered."""

    def __init__(self, config: RunConfig, mix: TaskMix, num_consumed: int) -> None:
        """``num_consumed`` batches of ``mix`` are trained or will be trained again."""
        self._schedule, self._num_steps = config.rollout.schedule, config.run.steps
        self._mix = mix
        self._num_begun = num_consumed
        """Batches whose groups are being played or were; only ``step`` goes by it."""

    def until(self, generation_version: int) -> dict[str, int]:
        """Groups of each task that may be claimed."""
        bound = self._bound(generation_version)
        return self._mix.until(min(bound, self._num_begun) if self.is_by_batch else bound)

    def is_exhausted(self, generation_version: int, claimed: Mapping[str, int]) -> bool:
        """Whether all that may be opened is."""
        return all(claimed[task] >= count for task, count in self.until(generation_version).items())

    def begin_batch(self, generation_version: int) -> None:
        """Those that have begun are complete: the next one begins, if the bound admits it."""
        if self._num_begun < self._bound(generation_version):
            self._num_begun += 1

    def oldest_allowed(self, trainer_version: int) -> int:
        """The version with which a trajectory of the trainer's next batch must have started, or a later one."""
        return _ANY_VERSION if self._schedule.stale == "train" else trainer_version - self._schedule.alpha

    @property
    def is_by_batch(self) -> bool:
        """Whether batches are played one after the other."""
        return self._schedule.overlap == "step"

    def _bound(self, generation_version: int) -> int:
        """Batches whose groups are fresh enough when they are opened now."""
        return min(generation_version + 1 + self._schedule.alpha, self._num_steps)
