"""Bad play on the lake: what the tiny model is warm-started on, so that reinforcement learning does the learning."""

from __future__ import annotations

from random import Random

from rollart_hpc.envs.frozen_lake.frozen_lake import ACTIONS, FrozenLake

MAX_TURNS = 10
SHORTENING_SHARE = 0.25


def bad_play(rng: Random) -> list[tuple[str, str]]:
    """One episode as pairs of observation and action text.

    Three steps in four are uniformly random, the others shorten the way, so that the goal is met at times.
    """
    lake = FrozenLake()
    observation, _ = lake.reset(seed=rng.getrandbits(31), task={})
    exchanges: list[tuple[str, str]] = []
    ended = False
    while not ended and len(exchanges) < MAX_TURNS:
        shortening = rng.random() < SHORTENING_SHARE
        word = lake.shortening_actions()[0] if shortening else rng.choice(list(ACTIONS))
        action = f"<answer>{word}</answer>"
        exchanges.append((observation, action))
        observation, _, ended, _, _ = lake.step(action)
    return exchanges
