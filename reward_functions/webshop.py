"""Reward of a shopping trip: the score that the shop gave the purchase."""

from __future__ import annotations

from rollart_hpc.types import Episode, Score

_DETAILS = ("r_type", "r_att", "r_option", "r_price")


async def score(episode: Episode) -> Score:
    """WebShop's score at Buy Now, 0 where nothing was bought; only the whole score, 1, is a success.

    Reads what the environment reported and nothing that the policy wrote.
    """
    info = episode.info
    turns = info["turns"]
    metrics = {"bought": float(info["bought"]), "invalid_share": info["invalid_turns"] / max(turns, 1)}
    if not info["bought"]:
        return Score(reward=0.0, metrics=metrics)
    details = info["reward_details"]
    # A goal without options has no share of options.
    metrics |= {name: float(details[name]) for name in _DETAILS if details[name] is not None}
    return Score(reward=info["score"], success=info["score"] == 1.0, metrics=metrics)
