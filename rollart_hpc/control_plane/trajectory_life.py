"""What the journal tells of one trajectory, or of one group, in the order in which it happened."""

from __future__ import annotations

from bisect import bisect_left
from difflib import get_close_matches
from pathlib import Path

import msgspec

from rollart_hpc.control_plane.journal import (
    AttemptStarted,
    BatchFormed,
    Dispatched,
    Ended,
    Finished,
    GivenUp,
    GroupOpened,
    HandedIn,
    Published,
    Record,
    Sent,
    read_journal,
)
from rollart_hpc.errors import ConfigError
from rollart_hpc.types import Outcome, Trajectory, TurnLog

_NEAR = 20
"""Neighbours in alphabetical order that are compared with an unknown id."""
PENDING = "pending"


class LifeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    attempt: int
    """In which attempt; 0 before the first that the journal knows."""
    event: str
    """opened, dispatched, sent, handed in, resumed, finished, failed, batch, given up, or an outcome."""
    text: str


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """Of a trajectory, or of a group with those of its members."""

    id: str
    state: str
    """The outcome, or pending; of a group: as it was given up, else that of its members, several with commas."""
    events: list[LifeEvent]
    members: list[Life] = []


def tell_life(run_directory: Path, wanted: str) -> Life:
    """The life of the trajectory or group of that id.

    Raises:
        ConfigError: there is none; the text names similar ids.
    """
    lives = _Lives(wanted)
    for record in read_journal(run_directory):
        lives.add(record)
    return lives.told()


class _Lives:
    """Collects what concerns one id."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._attempt = 0
        self._opened: dict[str, list[LifeEvent]] = {}
        """Events of groups; only the opening of those that are not wanted."""
        self._events: dict[str, list[LifeEvent]] = {}
        """Of the wanted trajectories."""
        self._group_of: dict[str, str] = {}
        """Of the wanted trajectories."""
        self._states: dict[str, str] = {}
        """Of the wanted trajectories and their groups."""
        self._steps: dict[str, int] = {}
        """Of the batches of wanted trajectories."""
        self._known: list[str] = []

    def add(self, record: Record) -> None:
        match record:
            case AttemptStarted():
                self._resume(record)
            case GroupOpened():
                text = (
                    f"for seed {record.seed}, number {record.index} of task {record.task}, at version {record.version}"
                )
                self._opened[record.group_id] = [self._event("opened", text)]
            case Dispatched():
                self._dispatch(record)
            case Sent():
                again = any(event.event == "sent" for event in self._events.get(record.trajectory_id, ()))
                self._tell(record.trajectory_id, "sent", f"{'again ' if again else ''}to {record.worker}")
            case HandedIn():
                self._tell(record.log.trajectory_id, "handed in", _describe_log(record.log))
            case Finished():
                trajectory = record.trajectory
                kind = "failed" if trajectory.failure else "finished"
                self._tell(trajectory.trajectory_id, kind, _describe(trajectory))
            case BatchFormed():
                for trajectory_id in self._events.keys() & set(record.trajectory_ids):
                    self._steps[trajectory_id] = record.step
                    self._tell(trajectory_id, "batch", f"in the batch of step {record.step}")
            case Ended():
                if record.trajectory_id in self._events:
                    self._states[record.trajectory_id] = str(record.outcome)
                self._tell(record.trajectory_id, str(record.outcome), record.cause)
            case GivenUp():
                self._give_up(record)
            case Published():
                pass

    def told(self) -> Life:
        members = [
            Life(id=trajectory_id, state=self._states[trajectory_id], events=events)
            for trajectory_id, events in self._events.items()
        ]
        if self._wanted in self._opened:
            state = self._states.get(self._wanted) or ", ".join(sorted({member.state for member in members}))
            return Life(id=self._wanted, state=state, events=self._opened[self._wanted], members=members)
        if members:
            return members[0]
        known = sorted({*self._known, *self._opened})
        place = bisect_left(known, self._wanted)
        near = known[max(0, place - _NEAR) : place + _NEAR]
        similar = get_close_matches(self._wanted, near, cutoff=0.5) or near[:3]
        raise ConfigError(
            f"{self._wanted}: the journal knows no trajectory and no group of this id"
            + (f"; similar ones: {', '.join(similar)}" if similar else "")
        )

    def _resume(self, record: AttemptStarted) -> None:
        self._attempt = record.attempt
        text = f"attempt {record.attempt} went on from step {record.step}"
        for trajectory_id in self._events:
            if self._steps.get(trajectory_id, -1) >= record.step:
                self._tell(trajectory_id, "resumed", f"{text}: its batch is trained again")
            elif self._states[trajectory_id] == PENDING:
                self._tell(trajectory_id, "resumed", text)

    def _dispatch(self, record: Dispatched) -> None:
        self._known.append(record.trajectory_id)
        if self._wanted not in (record.trajectory_id, record.group_id):
            return
        self._group_of[record.trajectory_id] = record.group_id
        self._states[record.trajectory_id] = PENDING
        self._events[record.trajectory_id] = []
        if self._wanted == record.trajectory_id:
            self._events[self._wanted] += self._opened.get(record.group_id, [])
        tries = f", after {record.tries} failures there" if record.tries else ""
        self._tell(record.trajectory_id, "dispatched", f"for place {record.place} of group {record.group_id}{tries}")

    def _give_up(self, record: GivenUp) -> None:
        what_follows = {
            Outcome.STALE: "its seed is played again",
            Outcome.POISONED: "its seed is not played again",
        }.get(record.outcome, "its seed is passed over")
        event = self._event("given up", f"the group was given up as {record.outcome}: {what_follows}")
        if record.group_id == self._wanted:
            self._states[record.group_id] = str(record.outcome)
            self._opened.setdefault(record.group_id, []).append(event)
        elif self._group_of.get(self._wanted) == record.group_id:
            self._events[self._wanted].append(event)

    def _tell(self, trajectory_id: str, event: str, text: str) -> None:
        if trajectory_id in self._events:
            self._events[trajectory_id].append(self._event(event, text))

    def _event(self, event: str, text: str) -> LifeEvent:
        return LifeEvent(attempt=self._attempt, event=event, text=text)


def _describe_log(log: TurnLog) -> str:
    unanswered = " and an action that was not answered" if log.action is not None else ""
    return f"after {len(log.turns)} turns{unanswered}"


def _describe(trajectory: Trajectory) -> str:
    if trajectory.failure:
        detail = f" ({trajectory.failure_detail})" if trajectory.failure_detail else ""
        text = f"on {trajectory.worker}: {trajectory.failure}{detail}"
    else:
        versions = sorted({span.version for span in trajectory.spans})
        sampled = f", sampled by version {versions[0]}" if versions else ""
        sampled += f" to {versions[-1]}" if len(versions) > 1 else ""
        cut = ", cut" if trajectory.truncated else ""
        text = f"on {trajectory.worker}: reward {trajectory.reward:g}, {trajectory.num_turns} turns{cut}{sampled}"
    if trajectory.num_continued_turns:
        text += f"; went on from {trajectory.num_continued_turns} turns"
    if trajectory.restarted:
        text += f"; started again: {trajectory.restarted}"
    return text
