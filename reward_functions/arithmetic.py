"""Reward of a sum: exact match, and a price for giving no answer."""

from __future__ import annotations

from rollart_hpc.types import Episode, Score


async def score(episode: Episode) -> Score:
    """1 for the right sum, 0 for a wrong one, -0.5 without an answer tag (and when the episode was cut before one)."""
    success = episode.info.get("success", False)
    answered = episode.info.get("answered", False)
    return Score(reward=success - 0.5 * (not answered), success=success, metrics={"answered": float(answered)})
