"""Reward of environments that give their own: the sum of what they gave."""

from __future__ import annotations

from rollart_hpc.types import Episode, Score


async def score(episode: Episode, *, discount: float = 1.0, scale: float = 1.0) -> Score:
    """The discounted sum of the turns' rewards; ``success`` is what the info says.

    Args:
        episode: a finished episode.
        discount: of each further turn; below 1 early rewards are worth more.
        scale: factor of the sum, for environments whose rewards are in the hundreds.
    """
    total = sum(turn.reward * discount**index for index, turn in enumerate(episode.turns))
    return Score(reward=scale * total, success=episode.info.get("success") is True, metrics={"return": total})
