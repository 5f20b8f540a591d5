"""The token-level policy loss and its corrections for stale tokens (paper section 7; PPO; DAPO clip-higher).

A token was sampled by some earlier version (its *sampler*) and is trained by the current one. The three
corrections differ in what the probability ratio is taken against:

- ``sampler_ratio``: PPO's clipped surrogate with the ratio of trainer to sampler. The clip range bounds
  staleness and the step at once, and nothing else weighs the token.
- ``truncated``: plain policy gradient, weighted by the ratio of trainer to sampler, cut off at a cap
  (truncated importance sampling).
- ``decoupled``: PPO's clipped surrogate against a *proximal* policy, the trainer at the start of the step,
  weighted by the capped ratio of proximal to sampler (AReaL, section 4.2). With one optimizer step per
  batch the proximal policy is the current one: its logprobs are the current ones, detached, which is the
  default here, and the clip can only act when several optimizer steps reuse a batch.

Shape legend: N tokens. Pure functions; N = 0 gives empty tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Correction = Literal["sampler_ratio", "truncated", "decoupled"]

_MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here: exp overflows float32 at 88, and such a token is clipped or capped anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """The loss of each token and what is worth watching beside it."""

    loss: torch.Tensor
    """[N] differentiable; not weighted, not averaged."""
    ratio: torch.Tensor
    """[N] detached probability ratio of trainer to sampler, whatever the correction."""
    clipped: torch.Tensor
    """[N] bool; the clip stopped this token's gradient, or the cap cut its weight."""


def policy_loss(
    logprobs: torch.Tensor,
    sampler_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    correction: Correction,
    clip_low: float,
    clip_high: float,
    importance_cap: float,
    proximal_logprobs: torch.Tensor | None = None,
) -> TokenLoss:
    """The loss of each token under one of the corrections.

    Args:
        logprobs: [N] of the trainer, differentiable.
        sampler_logprobs: [N] as sampled.
        advantages: [N]
        correction: See the module's text.
        clip_low: The ratio is clipped below ``1 - clip_low``.
        clip_high: The ratio is clipped above ``1 + clip_high``.
        importance_cap: Upper bound of the importance weight (truncated, decoupled).
        proximal_logprobs: [N] for ``decoupled``; the current logprobs, detached, when absent.

    Returns:
        The loss, the ratio and the clip flag of each token.
    """
    ratio = _ratio(logprobs, sampler_logprobs)
    if correction == "sampler_ratio":
        loss, clipped = _clipped_surrogate(ratio, advantages, clip_low, clip_high)
    elif correction == "truncated":
        weight = ratio.detach()
        loss = -advantages * weight.clamp(max=importance_cap) * logprobs
        clipped = weight > importance_cap
    else:
        proximal = logprobs.detach() if proximal_logprobs is None else proximal_logprobs
        surrogate, stopped = _clipped_surrogate(_ratio(logprobs, proximal), advantages, clip_low, clip_high)
        weight = _ratio(proximal, sampler_logprobs)
        loss = surrogate * weight.clamp(max=importance_cap)
        clipped = stopped | (weight > importance_cap)
    return TokenLoss(loss=loss, ratio=ratio.detach(), clipped=clipped)


def _ratio(numerator_logprobs: torch.Tensor, denominator_logprobs: torch.Tensor) -> torch.Tensor:
    return (numerator_logprobs - denominator_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def _clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's pessimistic bound, and where it has no gradient."""
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, bounded * advantages)
    too_high = (ratio > 1 + clip_high) & (advantages > 0)
    too_low = (ratio < 1 - clip_low) & (advantages < 0)
    return loss, (too_high | too_low).detach()
