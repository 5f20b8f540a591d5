"""What makes a run that was stopped go on: Slurm's queue, or its user."""

from __future__ import annotations

from typing import Protocol


class Continuation(Protocol):
    """Asked by the leader; each method blocks for seconds at most and never raises."""

    def stop_at(self) -> float | None:
        """When the run has to begin its stop because its time ends, seconds since the epoch; None without a limit."""
        ...

    def noticed(self) -> None:
        """The run was told to stop, by whomever; there may be seconds left.

        What has to be arranged before this process is killed is arranged now.
        """
        ...

    def go_on(self) -> str:
        """The run has stopped and everything is saved. Sees to it that it goes on later.

        Returns:
            What was arranged, in words for the attempt's record; empty when it is the user's turn. Where the job is
            requeued this process is killed soon after.
        """
        ...


class UserContinues:
    """On one machine: a stopped run waits for `rollart-hpc resume`."""

    def stop_at(self) -> float | None:
        """There is no limit."""
        return None

    def noticed(self) -> None:
        """Nothing has to be arranged."""

    def go_on(self) -> str:
        """It is the user's turn."""
        return ""
