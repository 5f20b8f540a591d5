"""Group advantages and the weights of a batch's tokens (GRPO; paper section 7).

numpy only, so that the controller can use it. Everything is keyed by group id and task name: the order of
a batch never matters, and neither does what else was filtered out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rollart_hpc.errors import RollartError
from rollart_hpc.types import Float32Array

BoolArray = npt.NDArray[np.bool_]
Keys = Sequence[str] | npt.NDArray[Any]


def group_advantages(
    rewards: Float32Array, group_ids: Keys, *, normalize_std: bool, std_floor: float
) -> tuple[Float32Array, BoolArray]:
    """Each reward against its own group: ``(R - mean) / (std + std_floor)`` (DeepSeekMath, section 4.1.2).

    The standard deviation is the sample's (divisor n - 1). Without `normalize_std` only the mean is
    subtracted. A group whose rewards are all equal, a group of one included, says nothing about which
    member was better: its advantages are 0.

    Args:
        rewards: [B] one per trajectory, finite.
        group_ids: [B] the group of each trajectory, in any order.
        normalize_std: Divide by the standard deviation.
        std_floor: Added to the standard deviation; bounds the advantage of nearly equal groups.

    Returns:
        advantages [B] and a mask [B], true where the trajectory's group has variance.

    Raises:
        RollartError: a reward is NaN or infinite, or there is not one group id per reward.
    """
    exact = np.asarray(rewards, np.float64)
    if exact.shape != (len(group_ids),):
        raise RollartError(f"got rewards of shape {exact.shape} for {len(group_ids)} group ids, expected one each")
    if not np.isfinite(exact).all():
        position = int(np.flatnonzero(~np.isfinite(exact))[0])
        raise RollartError(
            f"reward {position} (group {group_ids[position]}) is {exact[position]}, expected a finite number; "
            "record such a trajectory as failed instead of training it"
        )
    advantages = np.zeros(len(exact), np.float64)
    has_variance = np.zeros(len(exact), np.bool_)
    for members in _members_by_key(group_ids):
        group = exact[members]
        if group.min() == group.max():
            continue
        centred = group - group.mean()
        advantages[members] = centred / (group.std(ddof=1) + std_floor) if normalize_std else centred
        has_variance[members] = True
    return advantages.astype(np.float32), has_variance


def token_loss_weights(
    num_tokens: npt.NDArray[np.integer[Any]],
    tasks: Keys,
    trained: BoolArray,
    *,
    denominator: Literal["task", "global"],
) -> Float32Array:
    """The loss weight of every sampled token of each trajectory; the loss is then a plain weighted sum.

    With ``task`` each task's token mean is taken by itself and the means are summed, so that a task with
    long responses does not drown one with short ones. The denominators count all sampled tokens, those
    of untrained trajectories (groups without variance) included: how many groups are dropped changes
    nothing for the others.

    Args:
        num_tokens: [B] sampled response tokens of each trajectory; 0 is allowed.
        tasks: [B] task of each trajectory.
        trained: [B] false where the trajectory only counts in the denominator.
        denominator: Means per task, or one over the whole batch.

    Returns:
        [B] weight of each of the trajectory's sampled tokens; 0 where it is not trained.

    Raises:
        RollartError: the arguments differ in length or a count is negative.
    """
    counts = np.asarray(num_tokens, np.int64)
    if not counts.shape == np.shape(trained) == (len(tasks),):
        raise RollartError(
            f"got {len(tasks)} tasks for counts of shape {counts.shape} and a mask of shape {np.shape(trained)}, "
            "expected one each per trajectory"
        )
    if (counts < 0).any():
        raise RollartError(f"a trajectory has {counts.min()} sampled tokens, expected 0 or more")
    weights = np.zeros(len(counts), np.float64)
    pools = _members_by_key(tasks) if denominator == "task" else [np.arange(len(counts))]
    for members in pools:
        total = int(counts[members].sum())
        if total:
            weights[members] = 1.0 / total
    return np.where(trained, weights, 0.0).astype(np.float32)


def _members_by_key(keys: Keys) -> list[npt.NDArray[np.int64]]:
    """The positions that share each key."""
    by_key: dict[Any, list[int]] = {}
    for position, key in enumerate(keys):
        by_key.setdefault(key, []).append(position)
    return [np.asarray(positions, np.int64) for positions in by_key.values()]
