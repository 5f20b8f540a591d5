"""LLMProxy: the gateway between EnvManagers and generation workers (paper section 6.1).

A library in the environment worker, not a hop: it routes each turn by its tag's hardware affinity, to the worker
that has the trajectory's prefix, else to the one with the fewest outstanding tokens, and goes on elsewhere when a
worker ends or does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.data_plane.requests import WorkerRequests
from rollart_hpc.data_plane.routing import choose, least_tried, preferred_hardware
from rollart_hpc.errors import NotReachableError, RollartError, WaitTimeout
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Role

_MAX_TRIES = 5
_AFTER_REFUSAL_S = 0.5


class LLMProxy:
    """Generates turns on whatever workers are alive; `run` must be running."""

    def __init__(
        self, bus: Bus, member_id: str, view: MemberView, affinity: Mapping[str, str], *, timeout_s: float
    ) -> None:
        self._requests: WorkerRequests[GenerateRequest, GenerateResult] = WorkerRequests(
            bus, member_id, view, Role.ACTOR_GEN, GenerateResult, timeout_s=timeout_s
        )
        self._affinity, self._timeout_s = affinity, timeout_s
        self.run = self._requests.run
        self.next_request_id = self._requests.next_id

    async def generate(self, request: GenerateRequest, sticky: str | None) -> tuple[GenerateResult, str]:
        """Generates one turn; returns the result and the worker that gave it.

        ``sticky`` is the worker that has this trajectory's prefix; it is preferred while it lives.

        Raises:
            WaitTimeout: no worker is there, or none of several answered in time.
            RollartError: the engine refused the request; the text says why.
        """
        hardware = preferred_hardware(self._affinity, request.tag)
        load = len(request.token_ids) // 4 + request.max_tokens

        tried: list[str] = []

        def by_affinity(workers: Sequence[Member], outstanding_tokens: Mapping[str, int]) -> Member | None:
            return choose(least_tried(workers, tried) if tried else workers, hardware, sticky, outstanding_tokens)

        refusal = ""
        for tries in range(_MAX_TRIES):
            worker = await self._requests.pick(by_affinity)
            if tried:
                # Under a new id, since what a worker still answers to the old one is not meant any more.
                request = msgspec.structs.replace(request, request_id=self.next_request_id())
            tried.append(worker)
            try:
                result = await self._requests.ask(worker, request, load=load)
            except NotReachableError:
                continue
            if result.error:
                refusal = f"{worker}: {result.error}"
                await asyncio.sleep(_AFTER_REFUSAL_S * tries)
            elif result.finish_reason is not FinishReason.ABORT:
                return result, worker
        if refusal:
            raise RollartError(refusal)
        raise WaitTimeout(f"a turn with tag {request.tag!r}", f"{_MAX_TRIES} generation workers", self._timeout_s)
