"""Evaluations of one process are bounded, and failures of the infrastructure are no rewards."""

import asyncio
import threading

import pytest

from rollart_hpc.envs.swe.grading.verdict import Verdict
from rollart_hpc.envs.swe.instance import tiny_rows
from rollart_hpc.errors import SandboxError
from rollart_hpc.reward_functions import swe_tests
from rollart_hpc.types import Episode

EPISODE = Episode(
    task="swe",
    seed=0,
    turns=[],
    final_observation="",
    terminated=True,
    truncated=False,
    info={"instance": tiny_rows()[0], "patch": "x"},
)


async def test_no_more_evaluations_run_at_once_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[int] = set()
    most = 0
    both = threading.Barrier(2)

    def evaluate(*_: object, **__: object) -> Verdict:
        nonlocal most
        running.add(threading.get_ident())
        most = max(most, len(running))
        both.wait(timeout=10)
        running.discard(threading.get_ident())
        return Verdict(resolved=True, reason="resolved", dropped=("conftest.py",))

    monkeypatch.setattr(swe_tests, "evaluate", evaluate)
    scores = await asyncio.gather(*(swe_tests.score(EPISODE, max_concurrent=2) for _ in range(6)))
    assert most == 2
    assert {score.reward for score in scores} == {1.0}
    assert scores[0].metrics["files_dropped"] == 1


async def test_a_sandbox_that_fails_is_raised_and_never_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: object, **__: object) -> Verdict:
        raise SandboxError("no room")

    monkeypatch.setattr(swe_tests, "evaluate", evaluate)
    with pytest.raises(SandboxError, match="no room"):
        await swe_tests.score(EPISODE)
