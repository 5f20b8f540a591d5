"""Reward of a repair: the hidden tests of the task, run on the patch in a clean sandbox of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from rollart_hpc.envs.swe.grading.evaluate import evaluate
from rollart_hpc.envs.swe.instance import TINY, Instance
from rollart_hpc.types import Episode, Score


async def score(episode: Episode, *, timeout_s: float = 300.0, max_concurrent: int = 4, snapshots: str = "") -> Score:
    """1 where all tests that must pass do, else 0, also for an episode that ended without a patch.

    Args:
        episode: of `rollart_hpc.envs.swe`.
        timeout_s: of the tests. The deadline of the whole call is the run's ``rollout.reward_timeout_s``: above this
            one, times the calls that wait for one another.
        max_concurrent: evaluations at once in this process.
        snapshots: as in the environment.

    Raises:
        ValueError: the episode is of another environment, or its task is broken.
        SandboxError, ImageError: the infrastructure failed.
    """
    info = episode.info
    if "instance" not in info:
        raise ValueError(f"info has {sorted(info)} and no 'instance'; swe_tests scores episodes of envs.swe")
    instance = Instance.from_row(info["instance"], snapshots=Path(snapshots) if snapshots else TINY)
    patch = info.get("patch", "").encode(info.get("patch_encoding", "utf-8"))
    loop = asyncio.get_running_loop()
    verdict = await loop.run_in_executor(
        _evaluations(max_concurrent), lambda: evaluate(instance, patch, timeout_s=timeout_s)
    )
    return Score(
        reward=float(verdict.resolved),
        success=verdict.resolved,
        metrics={
            "submitted": float(info.get("submitted", False)),
            "patch_bytes": float(len(patch)),
            "files_dropped": float(len(verdict.dropped)),
            "fail_to_pass": verdict.fail_to_pass,
            "pass_to_pass": verdict.pass_to_pass,
            f"ended_{verdict.reason}": 1.0,
        },
    )


@lru_cache
def _evaluations(max_concurrent: int) -> ThreadPoolExecutor:
    """The threads of all calls of this process that give the same bound."""
    return ThreadPoolExecutor(max_concurrent, thread_name_prefix="swe_tests")
