"""The requests that an engine owes an answer; kept on the event loop.

Invariants: each accepted request is answered exactly once; a failure answers all of them, and every later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rollart_hpc.data_plane.backends.admission import refusal
from rollart_hpc.data_plane.engine import Answer, Deliver, OnFailure
from rollart_hpc.errors import EngineError
from rollart_hpc.types import GenerateRequest

Key = tuple[str, int]
"""Inbox and request id."""


class Outstanding:
    """Drops duplicates on the way in and unknown answers on the way out."""

    def __init__(self) -> None:
        self._deliver: Deliver = _nobody_listens
        self._on_failure: OnFailure = _nobody_listens
        self._requests: dict[Key, GenerateRequest] = {}
        self._ended = "the engine was not started"
        self._failed = False

    def __len__(self) -> int:
        """Requests accepted and not answered."""
        return len(self._requests)

    def open(self, deliver: Deliver, on_failure: OnFailure) -> None:
        """Takes requests from now on."""
        self._deliver, self._on_failure, self._ended = deliver, on_failure, ""

    def require_open(self) -> None:
        """Raises EngineError unless the engine was started and has neither failed nor been closed."""
        if self._ended:
            raise EngineError(self._ended)

    def accept(self, inbox: str, requests: Sequence[GenerateRequest]) -> list[GenerateRequest]:
        """Those requests that are new; the engine owes them an answer from now on."""
        if self._ended:
            refused = [(inbox, refusal(request, self._ended)) for request in requests]
            asyncio.get_running_loop().call_soon(self._deliver, refused)
            return []
        fresh: list[GenerateRequest] = []
        for request in requests:
            key = (inbox, request.request_id)
            if key not in self._requests:
                self._requests[key] = request
                fresh.append(request)
        return fresh

    def settle(self, answers: Sequence[Answer]) -> None:
        """Delivers answers; a deliverer that raises is a failure of the engine."""
        owed = [answer for answer in answers if self._requests.pop((answer[0], answer[1].request_id), None)]
        if not owed:
            return
        try:
            self._deliver(owed)
        except Exception as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Answers everything with an error and reports the failure, once."""
        if self._failed:
            return
        self._failed = True
        self.end(f"the engine failed: {type(error).__name__}: {error}")
        self._on_failure(error)

    def end(self, reason: str) -> None:
        """Answers everything with an error; later requests get it at once."""
        self._ended = self._ended or reason
        lost = [(inbox, refusal(request, self._ended)) for (inbox, _), request in self._requests.items()]
        self._requests.clear()
        if lost:
            self._deliver(lost)


def _nobody_listens(_: object) -> None:
    raise EngineError("the engine was not started; call start first")
