"""Requests to the workers of one role, with failover: what LLMProxy and the reward gateway have in common.

Invariants: a request is in flight at one worker at a time; a worker's end or an overdue answer fails it at once,
so that the caller can try another; a cancelled request is aborted where it runs. No timer per request: one sweep.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.bus.mux import Identified, MuxClient
from rollart_hpc.data_plane.routing import WorkerLoad
from rollart_hpc.errors import NotReachableError, WaitTimeout
from rollart_hpc.types import Role

_SWEEP_EVERY_S = 1.0

Q = TypeVar("Q", bound=Identified)
R = TypeVar("R", bound=Identified)
Choose = Callable[[Sequence[Member], Mapping[str, WorkerLoad]], Member | None]


class WorkerRequests(Generic[Q, R]):
    """One process's requests to all live workers of a role; `run` must be running."""

    def __init__(
        self, bus: Bus, member_id: str, view: MemberView, role: Role, result_type: type[R], *, timeout_s: float
    ) -> None:
        self._mux: MuxClient[Q, R] = MuxClient(bus, member_id, str(role), result_type)
        self._view, self._role, self._timeout_s = view, role, timeout_s
        self._in_flight: defaultdict[str, dict[asyncio.Future[R], float]] = defaultdict(dict)
        """By worker; each with the time when it is overdue."""
        self._loads: defaultdict[str, WorkerLoad] = defaultdict(WorkerLoad)
        self._workers = self._able()
        self._worker_came = asyncio.Event()
        self.num_overdue = 0
        """Requests that were given up because no answer came in time."""
        view.listen(self._member_changed)

    async def run(self) -> None:
        """Serves until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mux.run())
            group.create_task(self._sweep())

    def next_id(self) -> int:
        """A request id that is new in this process."""
        return self._mux.next_id()

    async def pick(self, choose: Choose) -> str:
        """The worker that ``choose(live workers, outstanding load by worker)`` names; waits while it names none.

        Workers that are leaving take nothing new and are no choice.

        Raises:
            WaitTimeout: there was none within the deadline.
        """
        member = choose(self._workers, self._loads)
        if member is not None:
            return member.member_id
        try:
            async with asyncio.timeout(self._timeout_s):
                while (member := choose(self._workers, self._loads)) is None:
                    self._worker_came.clear()
                    await self._worker_came.wait()
        except TimeoutError:
            raise WaitTimeout(f"a live {self._role} worker", "the members", self._timeout_s) from None
        return member.member_id

    async def ask(self, worker: str, request: Q, *, tokens: int = 1) -> R:
        """Sends a request, whose weight is ``tokens``, to a worker and waits for its answer.

        Raises:
            NotReachableError: the worker ended, or did not answer within the deadline.
        """
        future = self._mux.send(worker, request)
        self._in_flight[worker][future] = asyncio.get_running_loop().time() + self._timeout_s
        load = self._loads[worker]
        load.requests += 1
        load.tokens += tokens
        try:
            return await future
        except (asyncio.CancelledError, NotReachableError):
            self._mux.abort(worker, request.request_id)
            self._mux.forget(request.request_id)
            raise
        finally:
            del self._in_flight[worker][future]
            load.requests -= 1
            load.tokens -= tokens

    def _member_changed(self, before: Member | None, after: Member | None) -> None:
        changed = after or before
        if changed is None or changed.role is not self._role:
            return
        self._workers = self._able()
        if after is not None:
            self._worker_came.set()
        if before is not None and (after is None or after.incarnation != before.incarnation):
            for future in list(self._in_flight[before.member_id]):
                _fail(future, f"{before.member_id} ended")

    def _able(self) -> list[Member]:
        return [member for member in self._view.of_role(self._role) if not member.leaving]

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            for worker, futures in self._in_flight.items():
                for future, overdue_at in futures.items():
                    if overdue_at <= loop.time():
                        self.num_overdue += 1
                        _fail(future, f"{worker} gave no answer within {self._timeout_s:g} s")


def _fail(future: asyncio.Future[R], reason: str) -> None:
    if not future.done():
        future.set_exception(NotReachableError(reason))
