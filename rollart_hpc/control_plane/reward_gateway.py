"""RewardGateway: one score for one episode, from the serverless endpoint or the local pool (paper R3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.requests import WorkerRequests
from rollart_hpc.data_plane.reward_worker import RewardRequest, RewardResult
from rollart_hpc.data_plane.routing import WorkerLoad, least_loaded, least_tried
from rollart_hpc.errors import BusError, NotReachableError, RewardFault, WaitTimeout
from rollart_hpc.rewards.client import RewardClient
from rollart_hpc.rewards.payload import PayloadWriter, Played
from rollart_hpc.types import Episode, Role, Score

_MAX_TRIES = 3
_GRACE_S = 5.0
"""The pool reports an overdue call itself; the request waits this much longer for that."""


class RewardGateway:
    """Scores episodes; `run` must be running."""

    def __init__(self, bus: Bus, member_id: str, view: MemberView, config: RunConfig) -> None:
        # A class of the user's own may take the whole time before the local pool begins.
        num_paths = 2 if config.workers.reward else 1
        timeout_s = num_paths * config.rollout.reward_timeout_s + _GRACE_S
        self._requests: WorkerRequests[RewardRequest, RewardResult] = WorkerRequests(
            bus, member_id, view, Role.REWARD, RewardResult, timeout_s=timeout_s
        )
        self._payloads = PayloadWriter(config.run.path(), member_id)
        self._client = RewardClient(
            {name: config.endpoint_of(task.reward_url) for name, task in config.tasks.items() if task.reward_url},
            self._score_locally,
            payloads=self._payloads,
            shapes={name: task.reward_payload for name, task in config.tasks.items()},
            deadline_s=config.rollout.reward_timeout_s,
        )

    async def run(self) -> None:
        """Serves until cancelled."""
        self._payloads.clear()
        try:
            async with self._client:
                await self._requests.run()
        finally:
            self._payloads.clear()

    async def score(self, episode: Episode, played: Played | None = None) -> Score:
        """The episode's score; without ``played`` it has no tokens, and is told apart by its words alone.

        Raises:
            RewardFault: there is none; the cause says why.
        """
        return await self._client.score(episode, played)

    async def _score_locally(self, task: str, episode: Episode) -> Score:
        tried: list[str] = []

        def choose(workers: Sequence[Member], loads: Mapping[str, WorkerLoad]) -> Member | None:
            return least_loaded(least_tried(workers, tried), loads)

        for _ in range(_MAX_TRIES):
            try:
                worker = await self._requests.pick(choose)
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
