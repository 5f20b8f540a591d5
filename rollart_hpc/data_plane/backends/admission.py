"""The check that every engine makes of a request before it touches the model.

Invariant: what passes cannot fail in the engine. An id outside the vocabulary or a seed that no generator takes
would otherwise raise in the middle of a step and cost every request of the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult

_MAX_TEMPERATURE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the model can take."""

    max_context: int
    """Tokens of prompt and response together."""
    vocab_size: int


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that the engine can serve."""

    token_ids: list[int]
    max_tokens: int
    """Cut to the room that the prompt leaves."""


def admit(request: GenerateRequest, limits: ModelLimits) -> AdmittedRequest | GenerateResult:
    """The request as the engine takes it, or the answer that it gets instead."""
    if len(request.token_ids) % 4:
        return refusal(request, f"token_ids has {len(request.token_ids)} bytes; expected a multiple of 4 (int32)")
    token_ids = np.frombuffer(request.token_ids, "<i4")
    problem = _problem_of(request) or _problem_of_prompt(token_ids, limits)
    if problem:
        return refusal(request, problem)
    room = limits.max_context - len(token_ids)
    if room < 1:
        return GenerateResult(request.request_id, b"", b"", (), FinishReason.CONTEXT)
    return AdmittedRequest(token_ids.tolist(), min(request.max_tokens, room))


def refusal(request: GenerateRequest, error: str) -> GenerateResult:
    """The answer to a request that was refused or lost."""
    return GenerateResult(request.request_id, b"", b"", (), FinishReason.ABORT, 0, error)


def aborted(request: GenerateRequest) -> GenerateResult:
    """The answer to a request that was aborted before its first token."""
    return GenerateResult(request.request_id, b"", b"", (), FinishReason.ABORT)


def _problem_of(request: GenerateRequest) -> str:
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}; expected 1 or more"
    # Written so that NaN fails too.
    if not (math.isfinite(request.temperature) and 0 <= request.temperature <= _MAX_TEMPERATURE):
        return f"temperature is {request.temperature}; expected 0 (greedy) to {_MAX_TEMPERATURE:g}"
    if not 0 < request.top_p <= 1:
        return f"top_p is {request.top_p}; expected more than 0 and at most 1"
    if request.seed is not None and not 0 <= request.seed < 2**63:
        return f"seed is {request.seed}; expected 0 to 2**63 - 1"
    return ""


def _problem_of_prompt(token_ids: np.ndarray[tuple[int], np.dtype[np.int32]], limits: ModelLimits) -> str:
    if not len(token_ids):
        return "the prompt is empty; expected at least one token"
    low, high = int(token_ids.min()), int(token_ids.max())
    if low < 0 or high >= limits.vocab_size:
        return (
            f"the prompt has token ids {low} to {high}; expected 0 to {limits.vocab_size - 1}, the model's vocabulary"
        )
    return ""
