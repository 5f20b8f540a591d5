"""A request while it is generated, and what the finished ones used."""

from __future__ import annotations

import time
from array import array

from rollart_hpc.data_plane.backends.vllm.steppers import StepOutput
from rollart_hpc.data_plane.engine import TagUsage
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Span


class RunningRequest:
    """Collects the tokens of one request and which version sampled them."""

    __slots__ = (
        "_logprobs",
        "_span_start",
        "_spans",
        "_tokens",
        "added_at",
        "first_token_at",
        "inbox",
        "num_cached_tokens",
        "num_prompt_tokens",
        "request",
    )

    def __init__(self, inbox: str, request: GenerateRequest, num_prompt_tokens: int, added_at: float) -> None:
        self.inbox, self.request, self.num_prompt_tokens = inbox, request, num_prompt_tokens
        self.added_at, self.first_token_at = added_at, 0.0
        self.num_cached_tokens = 0
        self._tokens, self._logprobs = array("i"), array("f")
        self._spans: list[Span] = []
        self._span_start = 0

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self._tokens)

    def extend(self, output: StepOutput) -> None:
        """Takes what one step sampled."""
        if not self._tokens:
            self.first_token_at = time.perf_counter()
            self.num_cached_tokens = output.num_cached_tokens or 0
        self._tokens.extend(output.token_ids)
        self._logprobs.extend(output.logprobs)

    def cut(self, version: int) -> None:
        """Ends the span of a version: what follows is sampled by another."""
        if len(self._tokens) > self._span_start:
            self._spans.append(Span(version, self._span_start, len(self._tokens)))
            self._span_start = len(self._tokens)

    def result(self, version: int, reason: FinishReason) -> GenerateResult:
        """The answer, with what there is; ``version`` sampled the tokens since the last cut."""
        self.cut(version)
        return GenerateResult(
            self.request.request_id,
            self._tokens.tobytes(),
            self._logprobs.tobytes(),
            tuple(self._spans),
            reason,
            self.num_cached_tokens,
        )


class UsageCounter:
    """Sums over finished requests, by tag; written by one thread."""

    def __init__(self) -> None:
        self._by_tag: dict[str, TagUsage] = {}

    def by_tag(self) -> dict[str, TagUsage]:
        """A copy."""
        return dict(self._by_tag)

    def count(self, running: RunningRequest) -> None:
        """Adds a request that has just finished."""
        prefill_s = running.first_token_at - running.added_at
        self.add(
            running.request.tag,
            num_prompt_tokens=running.num_prompt_tokens,
            num_cached_tokens=running.num_cached_tokens,
            num_new_tokens=running.num_tokens,
            prefill_s=prefill_s,
            decode_s=time.perf_counter() - running.first_token_at,
        )

    def add(
        self,
        tag: str,
        *,
        num_prompt_tokens: int,
        num_cached_tokens: int,
        num_new_tokens: int,
        prefill_s: float,
        decode_s: float,
    ) -> None:
        """Adds one finished request."""
        before = self._by_tag.get(tag) or TagUsage()
        self._by_tag[tag] = TagUsage(
            num_requests=before.num_requests + 1,
            num_prompt_tokens=before.num_prompt_tokens + num_prompt_tokens,
            num_cached_tokens=before.num_cached_tokens + num_cached_tokens,
            num_new_tokens=before.num_new_tokens + num_new_tokens,
            prefill_s=before.prefill_s + prefill_s,
            decode_s=before.decode_s + decode_s,
        )
