"""Rebuilding: the environment of a trajectory that an earlier attempt began, from its seed and its actions.

An environment that declares itself replayable promises that this works; here it is held to it. Anything that it says
otherwise than it is recorded makes the recorded tokens those of another episode.
"""

from __future__ import annotations

import logging

from rollart_hpc.control_plane.running_episode import RunningEpisode
from rollart_hpc.types import TurnLog

_log = logging.getLogger(__name__)


async def rebuild(episode: RunningEpisode, log: TurnLog) -> str:
    """Plays what is recorded, but for an action that was not answered.

    Returns:
        In what the episode differs from the log; empty where it does not, and it stands where the log ends.

    Raises:
        EnvironmentFault: the environment failed.
    """
    observation = await episode.reset(log.seed)
    for number, turn in enumerate(log.turns, start=1):
        if observation != turn.observation:
            return _difference(f"observation of turn {number}", observation, turn.observation, log)
        if episode.has_ended:
            return _difference(f"end after turn {number - 1}", "the end", turn.action, log)
        state = await episode.step(turn.action)
        if state.reward != turn.reward:
            return _difference(f"reward of turn {number}", state.reward, turn.reward, log)
        observation = state.observation
    if observation != log.observation:
        return _difference(f"observation of turn {len(log.turns) + 1}", observation, log.observation, log)
    if episode.has_ended and log.action is not None:
        return _difference(f"end after turn {len(log.turns)}", "the end", log.action, log)
    return ""


def _difference(what: str, got: object, expected: object, log: TurnLog) -> str:
    _log.warning(
        "trajectory %s: %s differs in the rebuilt environment: got %s, recorded is %s",
        log.trajectory_id,
        what,
        _shown(got),
        _shown(expected),
    )
    return f"{what} differs"


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text[:200]}..." if len(text) > 200 else text
