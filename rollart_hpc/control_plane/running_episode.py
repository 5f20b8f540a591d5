"""RunningEpisode: one episode of an environment, with what has to be known of it when it has ended."""

from __future__ import annotations

from typing import Any

from rollart_hpc.data_plane.environment_host import EnvironmentSession
from rollart_hpc.data_plane.environment_instance import Transition


class RunningEpisode:
    """Played in a session, under the task's turn limit; `reset` comes first."""

    def __init__(self, session: EnvironmentSession, *, max_turns: int) -> None:
        self._session, self._max_turns = session, max_turns
        self._num_turns = 0
        self.info: dict[str, Any] = {}
        """The info mapping of the last step, over those before it."""
        self.terminated = False
        self.truncated = False
        """By the environment itself, by the turn limit, or by whoever plays."""

    @property
    def has_ended(self) -> bool:
        """No step follows."""
        return self.terminated or self.truncated

    async def reset(self, seed: int) -> str:
        """Starts it; returns the first observation.

        Raises:
            EnvironmentFault: see `EnvironmentSession.reset`.
        """
        state = await self._session.reset(seed)
        self.info = dict(state.info)
        return state.observation

    async def step(self, action: str) -> Transition:
        """Plays one turn.

        Raises:
            EnvironmentFault: see `EnvironmentSession.step`.
        """
        state = await self._session.step(action)
        self._num_turns += 1
        self.info.update(state.info)
        self.terminated = state.terminated
        self.truncated = state.truncated or (not state.terminated and self._num_turns >= self._max_turns)
        return state
