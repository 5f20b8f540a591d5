"""What AsyncLLM's last output of a request says: the answer, and what it took of the engine's time."""

from __future__ import annotations

from array import array
from typing import Any

from rollart_hpc.data_plane.backends.admission import refusal
from rollart_hpc.data_plane.backends.vllm.sampling import FINISH_REASONS
from rollart_hpc.data_plane.backends.vllm.shared_time import SharedTime
from rollart_hpc.types import GenerateRequest, GenerateResult, Span, TagUsage


def result_of(request: GenerateRequest, output: Any) -> GenerateResult:
    """The answer."""
    completion = output.outputs[0]
    reason = FINISH_REASONS.get(completion.finish_reason)
    if reason is None:
        return refusal(request, f"vLLM ended the request with {completion.finish_reason}")
    logprobs = completion.logprobs.logprobs if completion.logprobs else ()
    return GenerateResult(
        request.request_id,
        array("i", completion.token_ids).tobytes(),
        array("f", logprobs).tobytes(),
        _spans(completion),
        reason,
        output.num_cached_tokens or 0,
    )


def usage_of(output: Any, num_prompt_tokens: int, time: SharedTime) -> TagUsage:
    """What a request used that has its last token now; nothing where it was aborted before its first."""
    completion, told = output.outputs[0], output.metrics
    if not completion.token_ids:
        return TagUsage()
    shares = time.shares(
        told.first_token_ts - told.scheduled_ts,
        told.last_token_ts - told.first_token_ts,
        num_prompt_tokens,
        _spans(completion),
    )
    return TagUsage(
        num_requests=1,
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=output.num_cached_tokens or 0,
        num_new_tokens=len(completion.token_ids),
        prefill_s=shares.prefill_s,
        decode_s=shares.decode_s,
        recompute_s=shares.recompute_s,
    )


def _spans(completion: Any) -> tuple[Span, ...]:
    return tuple(Span(int(span.version), span.start, span.end) for span in completion.weight_versions or ())
