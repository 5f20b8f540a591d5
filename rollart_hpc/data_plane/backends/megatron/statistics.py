"""The sums behind a step's statistics: per micro-batch, then over all ranks.

Sums, never means, until the very end: ranks and micro-batches hold different numbers of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from rollart_hpc.algorithms.losses import TokenLoss
from rollart_hpc.data_plane.backends.megatron.packing import MicroBatch
from rollart_hpc.types import TrainStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """What can be summed; float64 on the rank's device, on the CPU after `reduced`."""

    totals: torch.Tensor
    """[7] loss, trained tokens, clipped tokens, ratio, entropy, gap, compared tokens."""
    gap_max: torch.Tensor
    """Largest |sampler logprob - trainer logprob| over same-version tokens."""

    @staticmethod
    def of(
        micro_batch: MicroBatch, token: TokenLoss, logprobs: torch.Tensor, entropy: torch.Tensor, loss: torch.Tensor
    ) -> StepSums:
        """The sums of one micro-batch."""
        trained = micro_batch.loss_weights != 0
        gap = (micro_batch.sampler_logprobs - logprobs).abs()[micro_batch.same_version].double()
        totals = (
            loss,
            trained.sum(),
            (token.clipped & trained).sum(),
            token.ratio[trained].double().sum(),
            entropy[trained].double().sum(),
            gap.sum(),
            micro_batch.same_version.sum(),
        )
        return StepSums(
            totals=torch.stack([total.double() for total in totals]),
            gap_max=gap.max() if len(gap) else gap.new_zeros(()),
        )

    @staticmethod
    def reduced(parts: list[StepSums], *, counts: bool, device: torch.device) -> StepSums:
        """The sums over all micro-batches of all ranks; collective.

        Args:
            parts: Of this rank's micro-batches.
            counts: False on ranks that hold copies of a peer's results, or none.
            device: Where the collective runs.
        """
        totals = torch.zeros(7, dtype=torch.float64, device=device)
        gap_max = torch.zeros((), dtype=torch.float64, device=device)
        for part in parts if counts else []:
            totals += part.totals
            gap_max = torch.maximum(gap_max, part.gap_max)
        dist.all_reduce(totals)
        dist.all_reduce(gap_max, op=dist.ReduceOp.MAX)
        return StepSums(totals=totals.cpu(), gap_max=gap_max.cpu())

    @property
    def loss(self) -> float:
        """The weighted sum."""
        return float(self.totals[0])

    def statistics(self, *, step: int, grad_norm: float, learning_rate: float, seconds: dict[str, float]) -> TrainStats:
        """Means over trained tokens, and what else the step reports."""
        loss, num_tokens, clipped, ratio, entropy, gap_sum, gap_count = self.totals.tolist()
        per_token = 1 / max(1.0, num_tokens)
        return TrainStats(
            step=step,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            clip_fraction=clipped * per_token,
            ratio_mean=ratio * per_token,
            entropy=entropy * per_token,
            num_tokens=int(num_tokens),
            gap_sum=gap_sum,
            gap_max=float(self.gap_max),
            gap_count=int(gap_count),
            seconds=seconds,
        )
