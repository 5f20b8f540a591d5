"""``rollart-hpc bench rewards``: the reward client at an endpoint that fails in every way, with and without hedging.

Trajectories end at a constant rate; the endpoint fails 17 % of the requests, is dead for a while, comes back, hangs for
a while, and comes back. Every trajectory must get one score, the right one. The local pool is the real one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rollart_hpc.types import Episode, Score

_HEDGE_AFTER_S = 0.15
_ATTEMPT_TIMEOUT_S = 1.0
_DEAD, _HUNG = (0.3, 0.5), (0.7, 0.9)
"""From and until which share of the calls."""


def right_score(episode: Episode) -> Score:
    """What is computed of an episode."""
    from rollart_hpc.types import Score

    return Score(reward=(episode.seed * 7919 % 1009) / 1009, success=True)


async def score(episode: Episode) -> Score:
    """The same as a reward function of the local pool."""
    return right_score(episode)


def bench_rewards(
    calls: Annotated[int, typer.Option(help="Trajectories to score.", min=100)] = 4000,
    rate: Annotated[float, typer.Option(help="Trajectories that end in a second.", min=1)] = 250.0,
    fallback_after: Annotated[float, typer.Option(help="Seconds that a call waits for a silent endpoint.")] = 1.2,
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Lost and double scores, latency and time to the fallback at a faulty serverless endpoint."""
    import logging

    import uvloop
    from rich.console import Console
    from rich.table import Table

    logging.getLogger("rollart_hpc").setLevel(logging.ERROR)
    rows = [
        uvloop.run(measure(calls, rate, hedge_after_s=hedge, fallback_after_s=fallback_after, seed=seed))
        for hedge in (None, _HEDGE_AFTER_S)
    ]
    if as_json:
        print(json.dumps(dict(zip(("plain", "hedged"), rows, strict=True))))
        return
    table = Table("", "plain", "hedged", box=None)
    for name in rows[0]:
        table.add_row(name, *(str(row[name]) for row in rows))
    Console().print(table)


async def measure(
    calls: int, rate: float, *, hedge_after_s: float | None, fallback_after_s: float, seed: int
) -> dict[str, Any]:
    """One pass; see the columns in docs/rewards.md."""
    from pathlib import Path

    from rollart_hpc.config.serverless import ServerlessSection
    from rollart_hpc.rewards.client import RewardClient
    from rollart_hpc.rewards.faulty_endpoint import FaultyEndpoint
    from rollart_hpc.rewards.local_pool import LocalRewardPool
    from rollart_hpc.rewards.payload import PayloadWriter

    async with (
        FaultyEndpoint(right_score, seed=seed) as endpoint,
        LocalRewardPool({"bench": f"{__name__}:score"}, timeout_s=30) as pool,
    ):
        section = ServerlessSection(
            url=endpoint.url,
            attempt_timeout_s=_ATTEMPT_TIMEOUT_S,
            fallback_after_s=fallback_after_s,
            hedge_after_s=hedge_after_s,
        )
        players = _Players(endpoint, pool, calls)
        client = RewardClient({"bench": section}, players.score_locally, payloads=PayloadWriter(Path(), "bench"))
        async with client:
            await players.play(client, rate)
        (function,) = client.functions
        return {
            **players.result(),
            "serverless": client.paths_taken["serverless"],
            "hedges_won": f"{function.num_hedges_won} of {function.num_hedges}",
            "fallbacks": dict(client.causes.most_common()),
            "endpoint_faults": dict(endpoint.faults.most_common()),
        }


class _Players:
    """The trajectories: when each asked, got its scores, and had to fall back."""

    def __init__(self, endpoint: Any, pool: Any, calls: int) -> None:
        self._endpoint, self._pool, self._calls = endpoint, pool, calls
        self._begun: dict[int, float] = {}
        self._changed_at = 0.0
        """When the endpoint became what it is."""
        self._num_asked = 0
        """Calls that the endpoint got while it lived."""
        self._scores: dict[int, list[Score]] = {}
        self._steady_s: list[float] = []
        """Seconds of the calls that saw nothing of an outage."""
        self._fallback_s: list[float] = []
        """Of those that fell back in an outage, seconds of it until the local path began."""
        self._back_at, self._recovered_s = 0.0, 0.0

    async def score_locally(self, task: str, episode: Episode) -> Score:
        """The fallback, timed."""
        import time

        from rollart_hpc.rewards.faulty_endpoint import State

        if self._endpoint.state is not State.FAULTY:
            since = max(self._begun[episode.seed], self._changed_at)
            self._fallback_s.append(time.perf_counter() - since)
        return await self._pool.score(task, episode)

    async def play(self, client: Any, rate: float) -> None:
        """Ends trajectories at the rate while the endpoint goes through its states."""
        import asyncio
        import time

        from rollart_hpc.rewards.faulty_endpoint import State

        changes = {_DEAD[0]: State.DEAD, _DEAD[1]: State.FAULTY, _HUNG[0]: State.HUNG, _HUNG[1]: State.FAULTY}
        at_call = {int(share * self._calls): state for share, state in changes.items()}
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(self._calls):
                await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
                if state := at_call.get(number):
                    await self._endpoint.become(state)
                    self._changed_at = time.perf_counter()
                    self._back_at = self._changed_at if state is State.FAULTY else 0.0
                group.create_task(self._ask(client, number))

    async def _ask(self, client: Any, number: int) -> None:
        import time

        import numpy as np

        from rollart_hpc.errors import RewardFault
        from rollart_hpc.rewards.faulty_endpoint import State
        from rollart_hpc.rewards.payload import Played
        from rollart_hpc.types import Episode

        episode = Episode(
            task="bench", seed=number, turns=[], final_observation="", terminated=True, truncated=False, info={}
        )
        nothing = Played(trajectory_id=f"t-{number}", token_ids=np.zeros(0, np.int32), loss_mask=np.zeros(0, np.uint8))
        begun = self._begun[number] = time.perf_counter()
        is_steady = self._endpoint.state is State.FAULTY
        try:
            score = await client.score(episode, nothing)
        except RewardFault:
            return
        now = time.perf_counter()
        self._scores.setdefault(number, []).append(score)
        is_remote = not any(name.startswith("fallback_") for name in score.metrics)
        self._num_asked += is_steady and "fallback_left_alone" not in score.metrics
        if is_remote and self._back_at and begun > self._back_at:
            self._recovered_s, self._back_at = max(self._recovered_s, now - self._back_at), 0.0
        if is_steady and self._endpoint.state is State.FAULTY:
            self._steady_s.append(now - begun)

    def result(self) -> dict[str, Any]:
        """Counts and latencies."""
        import numpy as np

        from rollart_hpc.rewards.faulty_endpoint import State
        from rollart_hpc.types import Episode

        def is_wrong(number: int, score: Score) -> bool:
            episode = Episode(
                task="", seed=number, turns=[], final_observation="", terminated=True, truncated=False, info={}
            )
            return score.reward != right_score(episode).reward

        steady_ms = np.asarray(self._steady_s or [0.0]) * 1e3
        given = self._scores
        return {
            "calls": self._calls,
            "lost": self._calls - len(given),
            "double": sum(len(scores) > 1 for scores in given.values()),
            "wrong": sum(is_wrong(number, score) for number, scores in given.items() for score in scores),
            "p50_ms": round(float(np.percentile(steady_ms, 50)), 1),
            "p99_ms": round(float(np.percentile(steady_ms, 99)), 1),
            "max_ms": round(float(steady_ms.max()), 1),
            "fallback_p50_s": round(float(np.median(self._fallback_s or [0.0])), 3),
            "fallback_max_s": round(max(self._fallback_s, default=0.0), 3),
            "recovered_s": round(self._recovered_s, 2),
            "requests_per_call": round(self._endpoint.requests[State.FAULTY] / max(1, self._num_asked), 3),
        }
