"""Reward of the lake: the goal, the way made towards it, legible actions, few turns."""

from __future__ import annotations

from rollart_hpc.types import Episode, Score


async def score(episode: Episode) -> Score:
    """Success + 0.5 progress - 0.5 share of invalid turns - 0.01 a turn.

    Without the price of a turn some runs collapse into bumping against the edge.
    """
    info = episode.info
    turns = info["turns"]
    invalid_share = info["invalid_turns"] / max(turns, 1)
    reward = info["success"] + 0.5 * info["progress"] - 0.5 * invalid_share - 0.01 * turns
    metrics = {"progress": info["progress"], "invalid_share": invalid_share}
    return Score(reward=reward, success=info["success"], metrics=metrics)
