"""From complete groups to the trainer's batch: advantages and loss weights once, then one share per DP rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollart_hpc.algorithms.advantages import group_advantages, token_loss_weights
from rollart_hpc.config.schema import AlgorithmSection
from rollart_hpc.control_plane.group import Group
from rollart_hpc.types import Float32Array, TrainBatch, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class FormedBatch:
    """A batch as the trainer gets it, and what it says about the rollout."""

    shares: list[TrainBatch]
    """One per data-parallel rank."""
    num_trajectories: int
    num_groups_without_variance: int
    num_tokens: int
    """Of all sequences, observations included."""
    max_staleness: int
    """Trainer version minus the oldest start version."""


def form_batch(groups: list[Group], *, step: int, algorithm: AlgorithmSection, data_parallel: int) -> FormedBatch:
    """Builds the batch of ``step`` from whole groups.

    Trajectories without an advantage (their group has no variance) are left out of the sequences but counted in
    the denominators, as are those without a single sampled token.
    """
    trajectories = [trajectory for group in groups for trajectory in group.finished]
    advantages, has_variance = group_advantages(
        np.asarray([trajectory.reward for trajectory in trajectories], np.float32),
        [trajectory.group_id for trajectory in trajectories],
        normalize_std=algorithm.normalize_std,
        std_floor=algorithm.std_floor,
    )
    num_sampled = np.asarray([int(trajectory.loss_mask.sum()) for trajectory in trajectories], np.int64)
    trained = has_variance & (num_sampled > 0)
    weights = token_loss_weights(
        num_sampled,
        [trajectory.task for trajectory in trajectories],
        trained,
        denominator=algorithm.denominator,
    )
    chosen = [index for index in range(len(trajectories)) if trained[index]]
    shares = [
        _pack(step, [trajectories[i] for i in share], advantages[share], weights[share])
        for share in _balanced(chosen, [len(trajectory.token_ids) for trajectory in trajectories], data_parallel)
    ]
    return FormedBatch(
        shares=shares,
        num_trajectories=len(trajectories),
        num_groups_without_variance=len({trajectories[i].group_id for i in np.flatnonzero(~has_variance)}),
        num_tokens=sum(len(trajectory.token_ids) for trajectory in trajectories),
        max_staleness=max((step - trajectory.start_version for trajectory in trajectories), default=0),
    )


def _balanced(indices: list[int], num_tokens: list[int], num_shares: int) -> list[list[int]]:
    """Indices spread over the shares, the longest first to the share with the fewest tokens; each kept in order."""
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    loads = [0] * num_shares
    for index in sorted(indices, key=lambda i: (-num_tokens[i], i)):
        lightest = loads.index(min(loads))
        shares[lightest].append(index)
        loads[lightest] += num_tokens[index]
    return [sorted(share) for share in shares]


def _pack(step: int, trajectories: list[Trajectory], advantages: Float32Array, weights: Float32Array) -> TrainBatch:
    masks = [trajectory.loss_mask.astype(np.float32) for trajectory in trajectories]
    return TrainBatch(
        step=step,
        token_ids=_joined([trajectory.token_ids for trajectory in trajectories], np.int32),
        lengths=np.asarray([len(trajectory.token_ids) for trajectory in trajectories], np.int32),
        advantages=_joined([mask * value for mask, value in zip(masks, advantages, strict=True)], np.float32),
        loss_weights=_joined([mask * value for mask, value in zip(masks, weights, strict=True)], np.float32),
        sampler_logprobs=_joined([trajectory.logprobs for trajectory in trajectories], np.float32),
        same_version=_joined([trajectory.token_versions() == step for trajectory in trajectories], np.uint8),
    )


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)
