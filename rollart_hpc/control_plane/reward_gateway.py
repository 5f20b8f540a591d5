"""RewardGateway: one score for one episode, from the serverless endpoint or the local pool (paper R3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.requests import WorkerRequests
from rollart_hpc.data_plane.reward_worker import RewardRequest, RewardResult
from rollart_hpc.data_plane.routing import choose, least_tried
from rollart_hpc.errors import BusError, NotReachableError, RewardFault, WaitTimeout
from rollart_hpc.rewards.client import RewardClient
from rollart_hpc.types import Episode, Role, Score

_MAX_TRIES = 3
_GRACE_S = 5.0
"""The pool reports an overdue call itself; the request waits this much longer for that."""


class RewardGateway:
    """Scores episodes; `run` must be running."""

    def __init__(self, bus: Bus, member_id: str, view: MemberView, config: RunConfig) -> None:
        self._requests: WorkerRequests[RewardRequest, RewardResult] = WorkerRequests(
            bus, member_id, view, Role.REWARD, RewardResult, timeout_s=config.rollout.reward_timeout_s + _GRACE_S
        )
        self._client = RewardClient(
            {name: task.reward_url for name, task in config.tasks.items()},
            self._score_locally,
            deadline_s=config.rollout.reward_timeout_s,
        )

    async def run(self) -> None:
        """Serves until cancelled."""
        async with self._client:
            await self._requests.run()

    async def score(self, episode: Episode) -> Score:
        """The episode's score.

        Raises:
            RewardFault: there is none; the cause says why.
        """
        return await self._client.score(episode.task, episode)

    async def _score_locally(self, task: str, episode: Episode) -> Score:
        tried: list[str] = []

        def least_loaded(workers: Sequence[Member], outstanding: Mapping[str, int]) -> Member | None:
            return choose(least_tried(workers, tried), None, None, outstanding)

        for _ in range(_MAX_TRIES):
            try:
                worker = await self._requests.pick(least_loaded)
                tried.append(worker)
                request = RewardRequest(self._requests.next_id(), task, episode)
                result = await self._requests.ask(worker, request)
            except NotReachableError:
                continue
            except WaitTimeout as error:
                raise RewardFault("no_worker", str(error)) from error
            except BusError as error:
                raise RewardFault("too_large", str(error)) from error
            if result.score is None:
                raise RewardFault(result.cause, result.detail)
            return result.score
        raise RewardFault("timeout", f"{_MAX_TRIES} reward workers ended or did not answer")
