"""Configs and trajectories for tests of the control plane."""

from typing import Any

import numpy as np

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.model_identity import ModelIdentity
from rollart_hpc.types import FinishReason, Span, Ticket, Trajectory, Turn, TurnLog

IDENTITY = ModelIdentity(architecture={"hidden_size": 64}, vocab_size=100, tokenizer={})


def run_config(*, tasks: dict[str, dict[str, Any]] | None = None, **rollout: Any) -> RunConfig:
    task = {"environment": "m:E", "reward": "m:r", "group_size": 2}
    return parse_config(
        {
            "run": {"name": "test", "steps": 100},
            "model": {"path": "model"},
            "rollout": {"groups_per_step": 2, "trajectories_per_worker": 8, **rollout},
            "pools": {"all": {"hardware": "cpu", "actor_train": 1, "actor_gen": 1, "environment": 1, "reward": 1}},
            "tasks": {name: {**task, **changes} for name, changes in (tasks or {"a": {}}).items()},
        }
    )


def trajectory(ticket: Ticket, *, version: int = 0, reward: float = 0.0, **changes: Any) -> Trajectory:
    values: dict[str, Any] = {
        "trajectory_id": ticket.trajectory_id,
        "group_id": ticket.group_id,
        "task": ticket.task,
        "seed": ticket.seed,
        "worker": "environment-0",
        "token_ids": np.arange(4, dtype=np.int32),
        "loss_mask": np.array([0, 0, 1, 1], np.uint8),
        "logprobs": np.array([0, 0, -0.5, -0.25], np.float32),
        "spans": (Span(version, 2, 4),),
        "start_version": version,
        "reward": reward,
        "success": reward > 0,
        "truncated": False,
        "num_turns": 1,
    }
    return Trajectory(**{**values, **changes})


def turn_log(ticket: Ticket, *, version: int = 0, **changes: Any) -> TurnLog:
    """Of a trajectory with one turn, sampled by ``version``."""
    values: dict[str, Any] = {
        "trajectory_id": ticket.trajectory_id,
        "group_id": ticket.group_id,
        "task": ticket.task,
        "seed": ticket.seed,
        "turns": (Turn(observation="o", action="a", reward=0.0, finish_reason=FinishReason.STOP),),
        "observation": "p",
        "action": None,
        "finish_reason": None,
        "token_ids": np.arange(4, dtype=np.int32).tobytes(),
        "loss_mask": b"\0\0\1\1",
        "logprobs": np.array([0, 0, -0.5, -0.25], np.float32).tobytes(),
        "spans": (Span(version, 2, 4),),
    }
    return TurnLog(**{**values, **changes})
