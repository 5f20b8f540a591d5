"""What the controller counts while a run goes on: per step for metrics.jsonl, in sum for summary.json."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollart_hpc.control_plane.batch import FormedBatch
from rollart_hpc.control_plane.group import Group
from rollart_hpc.observe.metrics import read_metrics
from rollart_hpc.types import TrainStats, Trajectory

_WINDOW = 5
"""Steps of the means `success_first` and `success_last`."""


class _TaskStatistics:
    def __init__(self) -> None:
        self.success_by_step: list[float] = []
        self.reward_by_step: list[float] = []
        self.num_turns = 0
        self.num_trajectories = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.tokens_by_hardware: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()

    def as_summary(self) -> dict[str, Any]:
        first, last = self.success_by_step[:_WINDOW], self.success_by_step[-_WINDOW:]
        trajectories = max(1, self.num_trajectories)
        return {
            "success_first": _mean(first),
            "success_last": _mean(last),
            "reward_last": _mean(self.reward_by_step[-_WINDOW:]),
            "turns_mean": self.num_turns / trajectories,
            "prefix_cached_share": self.num_cached_tokens / max(1, self.num_prompt_tokens),
            "tokens_by_hardware": dict(self.tokens_by_hardware),
            "seconds_per_trajectory": {phase: total / trajectories for phase, total in self.seconds.items()},
        }


class RunStatistics:
    """Counts and times; times are seconds of this attempt."""

    def __init__(self, tasks: list[str]) -> None:
        self._tasks = {task: _TaskStatistics() for task in tasks}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._step_seconds: defaultdict[str, float] = defaultdict(float)
        self._began = time.perf_counter()
        self._recent_steps: deque[float] = deque([time.perf_counter()], maxlen=_WINDOW + 1)
        self.tokens_generated = 0
        self.tokens_trained = 0
        self.max_staleness = 0
        self._gap_sum, self._gap_count, self._gap_max = 0.0, 0, 0.0

    def went_on_from(self, run_directory: Path, step: int) -> None:
        """Takes over the curves of earlier attempts up to ``step``."""
        for record in read_metrics(run_directory):
            if record["step"] > step:
                return
            for name, task in record["tasks"].items():
                if name in self._tasks:
                    self._tasks[name].success_by_step.append(float(task["success"]))
                    self._tasks[name].reward_by_step.append(float(task["reward"]))

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Times one phase of a step."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begin
            self._seconds[name] += spent
            self._step_seconds[name] += spent

    def finished(self, trajectory: Trajectory) -> None:
        """Counts a trajectory that came back, whatever becomes of it."""
        if trajectory.failure:
            return
        self.tokens_generated += int(trajectory.loss_mask.sum())
        task = self._tasks[trajectory.task]
        task.num_trajectories += 1
        task.num_turns += trajectory.num_turns
        task.num_prompt_tokens += trajectory.num_prompt_tokens
        task.num_cached_tokens += trajectory.num_cached_tokens
        task.tokens_by_hardware.update(trajectory.tokens_by_hardware)
        task.seconds.update(trajectory.seconds)

    def trained(self, groups: list[Group], batch: FormedBatch, stats: TrainStats) -> dict[str, Any]:
        """Counts a train step; returns its record for metrics.jsonl."""
        self.tokens_trained += stats.num_tokens
        self.max_staleness = max(self.max_staleness, batch.max_staleness)
        self._gap_sum += stats.gap_sum
        self._gap_count += stats.gap_count
        self._gap_max = max(self._gap_max, stats.gap_max)
        tasks: dict[str, Any] = {}
        for name, task in self._tasks.items():
            members = [trajectory for group in groups if group.task == name for trajectory in group.finished]
            task.success_by_step.append(_mean([float(trajectory.success) for trajectory in members]))
            task.reward_by_step.append(_mean([trajectory.reward for trajectory in members]))
            tasks[name] = {
                "success": task.success_by_step[-1],
                "reward": task.reward_by_step[-1],
                "turns": _mean([float(trajectory.num_turns) for trajectory in members]),
                "truncated": _mean([float(trajectory.truncated) for trajectory in members]),
                "tokens_by_hardware": _tokens_by_hardware(members),
            }
        now = time.perf_counter()
        step_s, self._step_seconds = dict(self._step_seconds), defaultdict(float)
        record = {
            "tasks": tasks,
            "loss": stats.loss,
            "grad_norm": stats.grad_norm,
            "learning_rate": stats.learning_rate,
            "entropy": stats.entropy,
            "clip_fraction": stats.clip_fraction,
            "ratio_mean": stats.ratio_mean,
            "tokens": stats.num_tokens,
            "staleness_max": batch.max_staleness,
            "groups_without_variance": batch.num_groups_without_variance,
            "logprob_gap_max": stats.gap_max,
            "logprob_gap_mean": stats.gap_sum / max(1, stats.gap_count),
            "seconds": {**step_s, "step": now - self._recent_steps[-1], **stats.seconds},
            "trajectories_per_s": batch.num_trajectories / max(1e-9, now - self._recent_steps[-1]),
        }
        self._recent_steps.append(now)
        return record

    def as_summary(self) -> dict[str, Any]:
        """The totals of this attempt."""
        total = time.perf_counter() - self._began
        return {
            "max_staleness_trained": self.max_staleness,
            "tasks": {name: task.as_summary() for name, task in self._tasks.items()},
            "tokens_generated": self.tokens_generated,
            "tokens_trained": self.tokens_trained,
            "tokens_per_s": self.tokens_generated / max(1e-9, total),
            "seconds": {"total": total, **self._seconds, "other": max(0.0, total - sum(self._seconds.values()))},
            "logprob_gap": {
                "mean": self._gap_sum / max(1, self._gap_count),
                "max": self._gap_max,
                "tokens": self._gap_count,
            },
        }


def _tokens_by_hardware(members: list[Trajectory]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for trajectory in members:
        total.update(trajectory.tokens_by_hardware)
    return dict(total)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
