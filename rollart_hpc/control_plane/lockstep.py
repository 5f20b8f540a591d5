"""Lockstep: the trajectories of one environment worker take their turns together, or are scored together.

What the modes with batched environments do (paper section 3.1, Figure 5b): ``generate(); step()`` over all
environments that are being played, then one call for all rewards. Where the schedule says ``trajectory``, the same
calls wait for nobody.

Why nobody waits for ever. A player either does something or waits to begin something. What it does is bounded by the
deadline of that thing (reset, generation, step) or of its trajectory; one that ends, fails or is cancelled leaves at
once. While somebody does something that others wait for, that bound holds. When nobody does, the check that follows
each change lets the first of ``STEP``, ``GENERATE``, ``SCORE`` go on that anyone waits for: each waits only for players
that do something, never for players that wait. A trajectory that waits for a free environment process does not take
part in turns, since those who take turns hold the processes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from rollart_hpc.config.modes import Schedule


class Activity(Enum):
    """What a trajectory does between its ticket and its score."""

    APART = "apart"
    """It takes no turns: its environment is not open yet, or not any more."""
    RESET = "reset"
    """Or rebuilds the environment from a turn log."""
    GENERATE = "generate"
    STEP = "step"
    SCORE = "score"


_TURNS: Mapping[Activity, frozenset[Activity]] = {
    Activity.STEP: frozenset({Activity.GENERATE}),
    Activity.GENERATE: frozenset({Activity.RESET, Activity.GENERATE, Activity.STEP}),
}
"""What must have ended everywhere before each of them begins, in the order in which they are let go on."""
_SCORING: Mapping[Activity, frozenset[Activity]] = {
    Activity.SCORE: frozenset({Activity.APART, Activity.RESET, Activity.GENERATE, Activity.STEP}),
}


@dataclass(slots=True, eq=False)
class Player:
    """One trajectory's part; of `Lockstep.player`."""

    lockstep: Lockstep
    activity: Activity
    """What it does, or waits to begin."""
    turn: asyncio.Future[None] | None = None
    """While it waits."""

    def begin(self, activity: Activity) -> asyncio.Future[None] | None:
        """Ends what it did; to be awaited before ``activity`` begins, None where it waits for nobody."""
        return self.lockstep.move(self, activity)

    @contextmanager
    def taking_turns(self) -> Generator[None]:
        """From its reset on; who is out, in whatever way, holds up nobody's turn."""
        self.begin(Activity.RESET)
        try:
            yield
        finally:
            self.begin(Activity.APART)


class Lockstep:
    """Who does what, and who waits."""

    def __init__(self, schedule: Schedule) -> None:
        self._behind = {
            **(_TURNS if schedule.interaction == "batched" else {}),
            **(_SCORING if schedule.scoring == "batched" else {}),
        }
        self._doing: Counter[Activity] = Counter()
        self._waiting: dict[Activity, set[Player]] = {activity: set() for activity in self._behind}
        self._check: asyncio.Handle | None = None

    @contextmanager
    def player(self) -> Generator[Player]:
        """A trajectory takes part from now on until the block ends."""
        player = Player(self, Activity.APART)
        self._doing[Activity.APART] += 1
        try:
            yield player
        finally:
            self._end(player)

    def move(self, player: Player, activity: Activity) -> asyncio.Future[None] | None:
        """See `Player.begin`."""
        self._end(player)
        player.activity = activity
        if activity not in self._behind:
            self._doing[activity] += 1
            return None
        player.turn = asyncio.get_running_loop().create_future()
        self._waiting[activity].add(player)
        return player.turn

    def _end(self, player: Player) -> None:
        if player.turn is None:
            self._doing[player.activity] -= 1
        else:
            self._waiting[player.activity].discard(player)
            player.turn = None
        if self._behind and self._check is None:
            # Not at once: who came together with this one has its first turn with it.
            self._check = asyncio.get_running_loop().call_soon(self._let_go_on)

    def _let_go_on(self) -> None:
        self._check = None
        for activity, behind in self._behind.items():
            if any(self._doing[other] for other in behind):
                continue
            for player in list(self._waiting[activity]):
                if player.turn is not None and not player.turn.done():  # else it was cancelled and is about to leave
                    player.turn.set_result(None)
                    player.turn = None
                    self._waiting[activity].discard(player)
                    self._doing[activity] += 1
