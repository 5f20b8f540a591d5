"""A request of an emulated engine while it waits, is prefilled and is decoded.

One id stands for ``tokens_per_id`` tokens: what is generated is counted in tokens, what is answered in whole ids. An id
whose tokens two versions sampled is stamped with the one that ended it.
"""

from __future__ import annotations

import numpy as np

from rollart_hpc.simulate.kv_memory import Lease
from rollart_hpc.simulate.policy import logprobs
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Int32Array, Span, TagUsage


class Generated:
    """What one request has so far, and what it took of the engine's time."""

    __slots__ = (
        "_context",
        "_prompt_length",
        "_spans",
        "_tokens_per_id",
        "decode_s",
        "finish_reason",
        "inbox",
        "lease",
        "num_cached",
        "num_tokens",
        "prefill_s",
        "recompute_s",
        "request",
    )

    def __init__(
        self,
        inbox: str,
        request: GenerateRequest,
        *,
        prompt: Int32Array,
        response: Int32Array,
        finish_reason: FinishReason,
        tokens_per_id: int,
    ) -> None:
        """``response`` is all that it will generate, and ``finish_reason`` why it ends with it."""
        self.inbox, self.request, self.finish_reason = inbox, request, finish_reason
        self.num_tokens = self.num_cached = 0
        self.prefill_s = self.decode_s = self.recompute_s = 0.0
        self.lease: Lease | None = None
        self._context = np.concatenate((prompt, response))
        self._prompt_length, self._tokens_per_id = len(prompt), tokens_per_id
        self._spans: list[Span] = []

    @property
    def context(self) -> Int32Array:
        """The prompt and the whole ids that are generated."""
        return self._context[: self._prompt_length + self._num_ids]

    @property
    def num_left(self) -> int:
        """Ids that the context will grow by."""
        return len(self._context) - self._prompt_length - self._num_ids

    @property
    def context_tokens(self) -> int:
        """Tokens of the prompt and those that are generated."""
        return self._prompt_length * self._tokens_per_id + self.num_tokens

    @property
    def tokens_left(self) -> int:
        """Tokens that are not generated yet."""
        return len(self._context) * self._tokens_per_id - self.context_tokens

    def begin_prefill(self, lease: Lease) -> int:
        """Takes its memory; returns the tokens to compute, the last id's always: the next token follows from it."""
        self.lease = lease
        num_known = min(lease.num_known, len(self.context) - 1)
        if not self.num_tokens:
            self.num_cached = min(num_known, self._prompt_length)
        return self.context_tokens - num_known * self._tokens_per_id

    def take_prefill(self, seconds: float) -> None:
        """Its context was computed for so long, before its first token or again."""
        if self.num_tokens:
            self.recompute_s += seconds
        else:
            self.prefill_s += seconds

    def cut(self, version: int) -> None:
        """Ends the span of a version: what follows is sampled by another."""
        start = self._spans[-1].end if self._spans else 0
        if self._num_ids > start:
            self._spans.append(Span(version, start, self._num_ids))

    def result(self, version: int, reason: FinishReason) -> GenerateResult:
        """The answer, with what there is; ``version`` sampled the ids since the last cut."""
        self.cut(version)
        response = self._context[self._prompt_length : self._prompt_length + self._num_ids]
        parts = [logprobs(response[span.start : span.end], span.version).tobytes() for span in self._spans]
        return GenerateResult(
            self.request.request_id, response.tobytes(), b"".join(parts), tuple(self._spans), reason, self.num_cached
        )

    def usage(self) -> TagUsage:
        """What it used; one without an id counts for nothing."""
        if not self._num_ids:
            return TagUsage()
        return TagUsage(
            num_requests=1,
            num_prompt_tokens=self._prompt_length,
            num_cached_tokens=self.num_cached,
            num_new_tokens=self._num_ids,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            recompute_s=self.recompute_s,
        )

    @property
    def _num_ids(self) -> int:
        return self.num_tokens // self._tokens_per_id
