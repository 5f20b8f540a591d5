"""LLMProxy: the gateway between EnvManagers and generation workers (paper section 6.1).

A library in the environment worker, not a hop: it routes each turn by its tag's hardware affinity, to the worker
that has the trajectory's prefix, else to the one with the fewest outstanding tokens, and goes on elsewhere when a
worker ends or does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.data_plane.requests import WorkerRequests
from rollart_hpc.data_plane.routing import PrefixAffinity, Route, RoutingPolicy, WorkerLoad
from rollart_hpc.errors import NotReachableError, RollartError, WaitTimeout, text_of
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Role

UNKNOWN_HARDWARE = "unknown"
_MAX_TRIES = 5
_AFTER_REFUSAL_S = 0.5


class LLMProxy:
    """Generates turns on whatever workers are alive; `run` must be running."""

    def __init__(
        self,
        bus: Bus,
        member_id: str,
        view: MemberView,
        hardware_for: Callable[[str], str | None],
        *,
        timeout_s: float,
        policy: RoutingPolicy | None = None,
    ) -> None:
        """``hardware_for(tag)`` is the class that a tag is bound to now, None for any."""
        self._requests: WorkerRequests[GenerateRequest, GenerateResult] = WorkerRequests(
            bus, member_id, view, Role.ACTOR_GEN, GenerateResult, timeout_s=timeout_s
        )
        self._hardware_for, self._timeout_s = hardware_for, timeout_s
        self._choose = (policy or PrefixAffinity()).choose
        self._view = view
        self.run = self._requests.run
        self.next_request_id = self._requests.next_id

    @property
    def num_overdue(self) -> int:
        """Turns that a worker did not answer in time; each was tried elsewhere."""
        return self._requests.num_overdue

    def hardware_of(self, worker: str) -> str:
        """The hardware class of a worker that has just answered; ``unknown`` if it is gone already."""
        member = self._view.get(worker)
        return UNKNOWN_HARDWARE if member is None else member.hardware

    async def generate(self, request: GenerateRequest, sticky: str | None) -> tuple[GenerateResult, str]:
        """Generates one turn; returns the result and the worker that gave it.

        ``sticky`` is the worker that has this trajectory's prefix; it is preferred while it lives.

        Raises:
            WaitTimeout: no worker is there, or none of several answered in time.
            RollartError: the engine refused the request, or the routing policy is wrong; the text says why.
        """
        tokens = len(request.token_ids) // 4 + request.max_tokens
        tried: list[str] = []

        def choose(workers: Sequence[Member], loads: Mapping[str, WorkerLoad]) -> Member | None:
            hardware = self._hardware_for(request.tag)
            route = Route(tag=request.tag, hardware=hardware, sticky=sticky, tried=tried)
            try:
                chosen = self._choose(route, workers, loads)
            except Exception as error:
                raise RollartError(f"the routing policy raised {type(error).__name__}: {text_of(error)}") from error
            if chosen is not None and not isinstance(chosen, Member):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RollartError(f"the routing policy chose {chosen!r:.80}; expected one of the workers, or None")
            return chosen

        refusal = ""
        for tries in range(_MAX_TRIES):
            worker = await self._requests.pick(choose)
            if tried:
                # Under a new id, since what a worker still answers to the old one is not meant any more.
                request = msgspec.structs.replace(request, request_id=self.next_request_id())
            tried.append(worker)
            try:
                result = await self._requests.ask(worker, request, tokens=tokens)
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
