"""A generation worker that answers what a test says: a real member on the real bus, without a model."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, Membership, MemberView, expel
from rollart_hpc.bus.mux import MuxServer
from rollart_hpc.data_plane.backends.admission import aborted
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Role, Span

Script = Callable[[GenerateRequest], GenerateResult | None]


class ScriptedEngine:
    """Remembers its requests; answers each with ``script(request)``, or not at all where that is None."""

    def __init__(self, bus: Bus, member_id: str, script: Script, *, hardware: str) -> None:
        self.member = Member(member_id=member_id, role=Role.ACTOR_GEN, hardware=hardware, node="n", pid=1)
        self.script = script
        self.requests: list[GenerateRequest] = []
        self.aborts: list[int] = []
        self.changed = asyncio.Event()
        self.serving: asyncio.Task[None] = asyncio.get_running_loop().create_future()  # type: ignore[assignment]
        self._bus = bus
        self._mux: MuxServer[GenerateRequest, GenerateResult] = MuxServer(
            bus, member_id, GenerateRequest, self._receive
        )

    async def start(self, view: MemberView) -> None:
        """Serves, joins, and waits until it is seen."""
        self.serving = asyncio.create_task(self._mux.run())
        await asyncio.sleep(0)
        await self._bus.nc.flush()
        await seen(view, self.member.member_id, self.member, Membership(self._bus, self.member).join())

    async def expel(self, view: MemberView) -> None:
        """Takes the member away, as a leader does that saw the process die; waits until it is seen."""
        await seen(view, self.member.member_id, None, expel(self._bus, self.member.member_id))

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until what came here makes the condition true."""
        async with asyncio.timeout(5):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def _receive(self, inbox: str, requests: list[GenerateRequest], aborts: list[int]) -> None:
        self.requests += requests
        self.aborts += aborts
        for request in requests:
            if (result := self.script(request)) is not None:
                self._mux.answer(inbox, result)
        for request in self.requests:
            if request.request_id in aborts:
                self._mux.answer(inbox, aborted(request))
        self.changed.set()


async def seen(view: MemberView, member_id: str, expected: Member | None, change: Awaitable[None]) -> None:
    """Makes a change of a member and waits until the view shows it."""
    shown = asyncio.Event()
    view.listen(lambda before, after: shown.set() if view.get(member_id) == expected else None)
    await change
    await asyncio.wait_for(shown.wait(), 5)


def silent(request: GenerateRequest) -> None:
    """Never answers."""


def reply(
    request: GenerateRequest,
    token_ids: list[int],
    finish_reason: FinishReason = FinishReason.STOP,
    *,
    spans: tuple[Span, ...] | None = None,
    error: str = "",
) -> GenerateResult:
    """An answer; the logprob of token i of the response is -i/8, exact in float32."""
    return GenerateResult(
        request.request_id,
        np.asarray(token_ids, np.int32).tobytes(),
        (-np.arange(len(token_ids), dtype=np.float32) / 8).tobytes(),
        spans if spans is not None else ((Span(0, 0, len(token_ids)),) if token_ids else ()),
        finish_reason,
        error=error,
    )
