"""What redundancy and the mixing of tasks do to what is trained (paper section 6.3): counts of one attempt.

Bias of redundancy: the members that come first are shorter than those that are cut, whose ends nobody knows. The
witnesses, redundant members that play on, stand for them. Length bias: the same between what is trained and all that
came back, whatever took the rest away.
"""

from __future__ import annotations

from collections.abc import Iterable

from rollart_hpc.control_plane.group import Group
from rollart_hpc.types import Trajectory


class TrajectoryMeans:
    """Length, duration and success of trajectories that were scored."""

    def __init__(self) -> None:
        self.count = 0
        self._turns = self._tokens = self._successes = 0
        self._duration_s = 0.0
        self._num_measured = 0

    def add(self, trajectory: Trajectory, duration_s: float | None) -> None:
        """One more; one whose duration is not known counts for the rest."""
        self.count += 1
        self._turns += trajectory.num_turns
        self._tokens += int(trajectory.loss_mask.sum())
        self._successes += trajectory.success
        if duration_s is not None:
            self._duration_s += duration_s
            self._num_measured += 1

    @property
    def turns(self) -> float:
        """Mean number of turns."""
        return self._turns / max(1, self.count)

    @property
    def tokens(self) -> float:
        """Mean number of sampled tokens."""
        return self._tokens / max(1, self.count)

    def as_summary(self) -> dict[str, float]:
        """The means; empty when there was nothing."""
        if not self.count:
            return {}
        means = {"turns": self.turns, "tokens": self.tokens, "success": self._successes / self.count}
        return means | ({"duration_s": self._duration_s / self._num_measured} if self._num_measured else {})


class TaskRolloutStatistics:
    """Of one task."""

    def __init__(self) -> None:
        self.scored = TrajectoryMeans()
        """All that came back with a score, witnesses included."""
        self.trained = TrajectoryMeans()
        self.witnesses = TrajectoryMeans()
        self.num_redundant = 0
        """Ended as redundant, witnesses included."""
        self.num_trained_groups = 0
        self.waited_s = 0.0
        """Of all groups in batches, from their completion to the batch."""
        self.num_taken_groups = 0

    def taken(self, group: Group, now_s: float) -> None:
        """A group left the buffer into a batch."""
        self.num_taken_groups += 1
        self.waited_s += now_s - group.completed_s

    def trained_on(self, group: Group) -> None:
        """A group was trained."""
        self.num_trained_groups += 1
        for trajectory in group.finished:
            self.trained.add(trajectory, group.durations_s.get(trajectory.trajectory_id))

    @property
    def buffer_wait_s(self) -> float:
        """Mean time of a complete group in the buffer."""
        return self.waited_s / max(1, self.num_taken_groups)

    def length_bias(self) -> dict[str, float]:
        """Mean length of what was trained over that of all that came back; 1 is no bias."""
        if not self.trained.count or not self.scored.count:
            return {}
        ratios = {
            "turns": (self.trained.turns, self.scored.turns),
            "tokens": (self.trained.tokens, self.scored.tokens),
        }
        return {name: trained / scored for name, (trained, scored) in ratios.items() if scored}


def waited_for(batch: Iterable[Group]) -> str:
    """The task whose group completed the batch."""
    return max(batch, key=lambda group: group.completed_s).task
