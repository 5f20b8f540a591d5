"""What the tiny model is and what it is warm-started on: numbers that were found to learn, in one place.

The warm start teaches format and bad play only. Reinforcement learning then has everything left to learn, and
finds successes often enough to learn it from.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The Qwen3 architecture, tiny; heads of 32 are the smallest that vLLM's attention takes on a CPU."""

    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 192
    max_positions: int = 2048
    initializer_range: float = 0.1
    """Five times the usual: with the usual one a model this small barely moves."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecipe:
    """One task of the warm start; code is named by entry points, never imported here."""

    environment: str
    reward: str
    demonstrate: str
    """A function of a `random.Random` that plays one episode: pairs of observation and action text."""
    episodes: int
    """Of one optimizer step."""
    every: int
    """Steps from one batch of this task to the next."""
    loss_on_observations: bool
    """The lake is only learned when its grids are predicted too."""
    max_turns: int
    max_new_tokens: int


TASKS = {
    "frozen_lake": TaskRecipe(
        environment="rollart_hpc.envs.frozen_lake:FrozenLake",
        reward="rollart_hpc.reward_functions.frozen_lake:score",
        demonstrate="rollart_hpc.envs.frozen_lake.demonstrations:bad_play",
        episodes=16,
        every=3,
        loss_on_observations=True,
        max_turns=10,
        max_new_tokens=4,
    ),
    "arithmetic": TaskRecipe(
        environment="rollart_hpc.envs.arithmetic:Arithmetic",
        reward="rollart_hpc.reward_functions.arithmetic:score",
        demonstrate="rollart_hpc.envs.arithmetic.demonstrations:bad_play",
        episodes=64,
        every=1,
        loss_on_observations=False,
        max_turns=1,
        max_new_tokens=24,
    ),
}

LEARNING_RATE = 1e-2
WARMUP_STEPS = 10
FINAL_LEARNING_RATE_SHARE = 0.1
ADAM_BETAS = (0.9, 0.95)
CLIP_GRAD_NORM = 1.0


def learning_rate(step: int, num_steps: int) -> float:
    """Of one step, counted from 0: a linear rise, and a linear fall to a tenth."""
    rise = min(1.0, (step + 1) / WARMUP_STEPS)
    return LEARNING_RATE * rise * (FINAL_LEARNING_RATE_SHARE + (1 - FINAL_LEARNING_RATE_SHARE) * (1 - step / num_steps))
