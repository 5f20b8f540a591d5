"""An engine without a model: answers at once with ids of the prompt. For benchmarks of everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.admission import AdmittedRequest, ModelLimits, aborted, admit
from rollart_hpc.data_plane.backends.outstanding import Outstanding
from rollart_hpc.data_plane.engine import Answer, Deliver, OnFailure
from rollart_hpc.errors import EngineError
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Span, TagUsage

if TYPE_CHECKING:
    import torch

_MAX_NEW_TOKENS = 32


class EchoEngine:
    """Implements `Engine`; every request is finished in the tick of the event loop after its ADD."""

    def __init__(self, config: RunConfig) -> None:
        self._limits = ModelLimits(max_context=config.model.max_context, vocab_size=2**31 - 1)
        self._outstanding = Outstanding()
        self._version = 0
        self._suspended = False
        self._waiting: dict[tuple[str, int], GenerateRequest] = {}
        self._usage: dict[str, TagUsage] = {}

    @property
    def version(self) -> int:
        """See `Engine`."""
        return self._version

    @property
    def num_running(self) -> int:
        """See `Engine`."""
        return len(self._outstanding)

    def usage(self) -> Mapping[str, TagUsage]:
        """See `Engine`."""
        return dict(self._usage)

    async def start(self, deliver: Deliver, on_failure: OnFailure) -> None:
        """See `Engine`."""
        self._outstanding.open(deliver, on_failure)

    def add(self, inbox: str, requests: Sequence[GenerateRequest]) -> None:
        """See `Engine`."""
        fresh = self._outstanding.accept(inbox, requests)
        if fresh and not self._waiting and not self._suspended:
            asyncio.get_running_loop().call_soon(self._answer_waiting)
        self._waiting.update(((inbox, request.request_id), request) for request in fresh)

    def abort(self, inbox: str, request_ids: Iterable[int]) -> None:
        """See `Engine`."""
        found = [self._waiting.pop((inbox, request_id), None) for request_id in request_ids]
        self._outstanding.settle([(inbox, aborted(request)) for request in found if request])

    async def suspend(self) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        self._suspended = True

    async def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Engine`; the tensors are read and forgotten."""
        if not self._suspended:
            raise EngineError("load needs a suspended engine; call suspend first")
        for _ in tensors:
            pass
        self._version = version

    async def resume(self) -> None:
        """See `Engine`."""
        self._outstanding.require_open()
        self._suspended = False
        self._answer_waiting()

    async def probe(self, token_ids: Sequence[int]) -> list[float]:
        """See `Engine`; depends on the tokens alone."""
        if self._suspended:
            raise EngineError("a suspended engine cannot be probed; call resume first")
        return _logprobs_of(np.asarray(token_ids[1:], np.int32)).tolist()

    async def close(self) -> None:
        """See `Engine`."""
        self._outstanding.end("the engine was closed")

    def _answer_waiting(self) -> None:
        if self._suspended:
            return
        answers: list[Answer] = [(key[0], self._echo(request)) for key, request in self._waiting.items()]
        self._waiting.clear()
        self._outstanding.settle(answers)

    def _echo(self, request: GenerateRequest) -> GenerateResult:
        admitted = admit(request, self._limits)
        if not isinstance(admitted, AdmittedRequest):
            return admitted
        num_new = min(admitted.max_tokens, _MAX_NEW_TOKENS)
        response = np.resize(np.frombuffer(request.token_ids, "<i4"), num_new)
        self._count(request.tag, len(admitted.token_ids), num_new)
        return GenerateResult(
            request.request_id,
            response.tobytes(),
            _logprobs_of(response).tobytes(),
            (Span(self._version, 0, num_new),),
            FinishReason.LENGTH,
        )

    def _count(self, tag: str, num_prompt: int, num_new: int) -> None:
        before = self._usage.get(tag, TagUsage())
        self._usage[tag] = TagUsage(
            num_requests=before.num_requests + 1,
            num_prompt_tokens=before.num_prompt_tokens + num_prompt,
            num_new_tokens=before.num_new_tokens + num_new,
        )


def _logprobs_of(token_ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (-1.0 / (1.0 + token_ids)).astype(np.float32)
