"""A request while it is generated, and what the ended ones used."""

from __future__ import annotations

from array import array

from rollart_hpc.data_plane.backends.vllm.steppers import StepOutput
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Span, TagUsage


class RunningRequest:
    """Collects the tokens of one request, which version sampled them, and what they took of the engine's time."""

    __slots__ = (
        "_logprobs",
        "_recomputes",
        "_span_start",
        "_spans",
        "_tokens",
        "decode_s",
        "inbox",
        "num_cached_tokens",
        "num_prompt_tokens",
        "prefill_s",
        "recompute_s",
        "request",
    )

    def __init__(self, inbox: str, request: GenerateRequest, num_prompt_tokens: int) -> None:
        self.inbox, self.request, self.num_prompt_tokens = inbox, request, num_prompt_tokens
        self.prefill_s = self.decode_s = self.recompute_s = 0.0
        self.num_cached_tokens = 0
        self._recomputes = False
        self._tokens, self._logprobs = array("i"), array("f")
        self._spans: list[Span] = []
        self._span_start = 0

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self._tokens)

    def extend(self, output: StepOutput, share_s: float) -> None:
        """Takes what one step sampled, and its share of the step's time."""
        if not self._tokens:
            self.prefill_s += share_s
            self.num_cached_tokens = output.num_cached_tokens or 0
        elif self._recomputes:
            self.recompute_s += share_s
            self._recomputes = False
        else:
            self.decode_s += share_s
        self._tokens.extend(output.token_ids)
        self._logprobs.extend(output.logprobs)

    def usage(self) -> TagUsage:
        """What it used so far."""
        return TagUsage(
            num_requests=1,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_new_tokens=len(self._tokens),
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            recompute_s=self.recompute_s,
        )

    def cut(self, version: int) -> None:
        """Ends the span of a version: what follows is sampled by another, from KV that is computed again."""
        self._recomputes = bool(self._tokens)
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
    """Sums over ended requests, by tag; written by one thread."""

    def __init__(self) -> None:
        self._by_tag: dict[str, TagUsage] = {}

    def by_tag(self) -> dict[str, TagUsage]:
        """A copy."""
        return dict(self._by_tag)

    def count(self, running: RunningRequest) -> None:
        """Adds a request that has just ended; one without a token counts for nothing."""
        if running.num_tokens:
            self.add(running.request.tag, running.usage())

    def add(self, tag: str, usage: TagUsage) -> None:
        """Adds one ended request."""
        before = self._by_tag.get(tag)
        self._by_tag[tag] = usage if before is None else before.plus(usage)
