import math

import pytest
import torch

from rollart_hpc.algorithms.losses import policy_loss

CORRECTIONS = ["sampler_ratio", "truncated", "decoupled"]


def loss_and_gradient(ratios, advantages, correction, **extra):
    """Tokens whose sampler probability is 0.1 and whose trainer probability is ``ratio`` times that."""
    sampler = torch.full((len(ratios),), math.log(0.1), dtype=torch.float64)
    logprobs = (sampler + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    token = policy_loss(
        logprobs,
        sampler,
        torch.tensor(advantages, dtype=torch.float64),
        correction=correction,
        clip_low=0.2,
        clip_high=0.28,
        importance_cap=2.0,
        **extra,
    )
    token.loss.sum().backward()
    return token, logprobs.grad


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_on_policy_tokens_get_the_plain_policy_gradient(correction):
    token, gradient = loss_and_gradient([1.0, 1.0], [2.0, -3.0], correction)
    torch.testing.assert_close(gradient, torch.tensor([-2.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(token.ratio, torch.ones(2, dtype=torch.float64))
    assert not token.clipped.any()


def test_sampler_ratio_clips_only_steps_that_go_further_away():
    ratios, advantages = [1.5, 1.5, 0.5, 0.5, 1.25], [1.0, -1.0, 1.0, -1.0, 1.0]
    token, gradient = loss_and_gradient(ratios, advantages, "sampler_ratio")
    assert token.clipped.tolist() == [True, False, False, True, False]
    torch.testing.assert_close(gradient, torch.tensor([0, 1.5, -0.5, 0, -1.25], dtype=torch.float64))
    torch.testing.assert_close(token.loss, torch.tensor([-1.28, 1.5, -0.5, 0.8, -1.25], dtype=torch.float64))


def test_truncated_weighs_the_gradient_by_the_capped_ratio():
    token, gradient = loss_and_gradient([0.5, 1.5, 8.0], [1.0, 1.0, -1.0], "truncated")
    torch.testing.assert_close(gradient, torch.tensor([-0.5, -1.5, 2.0], dtype=torch.float64))
    assert token.clipped.tolist() == [False, False, True]


def test_decoupled_with_one_step_per_batch_weighs_by_the_capped_ratio_without_clipping():
    token, gradient = loss_and_gradient([0.5, 1.5, 8.0], [1.0, 1.0, -1.0], "decoupled")
    torch.testing.assert_close(gradient, torch.tensor([-0.5, -1.5, 2.0], dtype=torch.float64))
    assert token.clipped.tolist() == [False, False, True]


def test_decoupled_clips_against_the_proximal_policy():
    proximal = torch.full((1,), math.log(0.15), dtype=torch.float64)
    token, gradient = loss_and_gradient([3.0], [1.0], "decoupled", proximal_logprobs=proximal)
    assert token.clipped.item()
    assert gradient.item() == 0
    assert token.loss.item() == pytest.approx(-1.28 * 1.5)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_no_tokens_give_no_loss(correction):
    token, gradient = loss_and_gradient([], [], correction)
    assert token.loss.shape == token.ratio.shape == token.clipped.shape == gradient.shape == (0,)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_masked_tokens_leave_no_gradient_however_far_off_their_logprobs_are(correction):
    sampler = torch.tensor([0.0, -200.0, 0.0])
    logprobs = torch.tensor([-300.0, -0.1, -1.0], requires_grad=True)
    token = policy_loss(
        logprobs,
        sampler,
        torch.tensor([-1.0, -1.0, 1.0]),
        correction=correction,
        clip_low=0.2,
        clip_high=0.28,
        importance_cap=2.0,
    )
    (token.loss * torch.zeros(3)).sum().backward()
    assert torch.isfinite(token.loss).all()
    assert not logprobs.grad.any()
