"""What metrics.jsonl and summary.json say of mixing, redundancy, deadlines and poisoned seeds (paper section 6.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollart_hpc.control_plane.task_rollout import TaskRollout


def add_rollout_record(record: dict[str, Any], tasks: Mapping[str, TaskRollout], waited_for: str) -> None:
    """Adds to a step's record what is in use now and the means of this attempt so far.

    ``waited_for`` is the task that the step's batch waited for last; empty when it was complete at once.
    """
    record["waited_for"] = waited_for
    shares = _realized_shares(tasks)
    for name, task in tasks.items():
        _of_task(record, name).update(share=shares[name], **task.as_record())


def add_rollout_summary(summary: dict[str, Any], tasks: Mapping[str, TaskRollout]) -> None:
    """Adds the same to a summary, with the bias of redundancy, and the poisoned seeds of all attempts."""
    shares, weights = _realized_shares(tasks), {name: task.section.weight for name, task in tasks.items()}
    for name, task in tasks.items():
        _of_task(summary, name).update(
            share=shares[name], weight_share=weights[name] / sum(weights.values()), **task.as_summary()
        )
    summary["poisoned"] = {name: seeds for name, task in tasks.items() if (seeds := task.poisoned())}


def _realized_shares(tasks: Mapping[str, TaskRollout]) -> dict[str, float]:
    """Each task's share of the groups that were trained so far."""
    total = max(1, sum(task.statistics.num_trained_groups for task in tasks.values()))
    return {name: task.statistics.num_trained_groups / total for name, task in tasks.items()}


def _of_task(record: dict[str, Any], name: str) -> dict[str, Any]:
    return record.setdefault("tasks", {}).setdefault(name, {})
