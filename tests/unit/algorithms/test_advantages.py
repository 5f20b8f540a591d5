import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.algorithms.advantages import group_advantages, token_loss_weights
from rollart_hpc.errors import RollartError


def test_advantage_is_reward_minus_mean_over_sample_std_plus_floor():
    rewards = torch.tensor([1.0, 0.0, 0.5, -1.0])
    advantages, has_variance = group_advantages(rewards.numpy(), ["a"] * 4, normalize_std=True, std_floor=0.1)
    expected = (rewards - rewards.mean()) / (rewards.std() + 0.1)
    np.testing.assert_allclose(advantages, expected.numpy(), rtol=1e-6)
    assert has_variance.all()
    assert advantages.dtype == np.float32


def test_without_normalisation_only_the_mean_is_subtracted():
    advantages, _ = group_advantages(np.float32([3, 1]), ["a", "a"], normalize_std=False, std_floor=0.1)
    np.testing.assert_array_equal(advantages, [1, -1])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)), min_size=1, max_size=20), st.randoms())
def test_advantages_follow_the_group_id_in_any_order(samples, random):
    def compute(pairs):
        ids, rewards = zip(*pairs, strict=True)
        return group_advantages(np.float32(rewards), ids, normalize_std=True, std_floor=0.1)

    order = list(range(len(samples)))
    random.shuffle(order)
    advantages, has_variance = compute(samples)
    shuffled, shuffled_variance = compute([samples[i] for i in order])
    np.testing.assert_allclose(shuffled, advantages[order], atol=1e-6)
    np.testing.assert_array_equal(shuffled_variance, has_variance[order])


def test_integer_group_ids_work_like_names():
    rewards = np.float32([1, 0, 5, 5])
    by_number, mask = group_advantages(rewards, np.array([7, 7, 9, 9]), normalize_std=True, std_floor=0.0)
    np.testing.assert_allclose(by_number, [2**-0.5, -(2**-0.5), 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(mask, [True, True, False, False])


@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [0.7]], ids=["equal", "alone"])
def test_groups_without_variance_get_zero_and_are_reported(rewards):
    advantages, has_variance = group_advantages(
        np.float32(rewards), ["a"] * len(rewards), normalize_std=True, std_floor=0.0
    )
    assert not advantages.any()
    assert not has_variance.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_refused_with_its_group(bad):
    with pytest.raises(RollartError, match="group b"):
        group_advantages(np.float32([1, 0, bad]), ["a", "a", "b"], normalize_std=True, std_floor=0.1)


def test_a_group_id_too_few_is_refused():
    with pytest.raises(RollartError, match="expected one each"):
        group_advantages(np.float32([1, 0]), ["a"], normalize_std=True, std_floor=0.1)


def test_an_empty_batch_gives_empty_results():
    advantages, has_variance = group_advantages(np.float32([]), [], normalize_std=True, std_floor=0.1)
    assert advantages.shape == has_variance.shape == (0,)
    weights = token_loss_weights(np.int32([]), [], np.array([], np.bool_), denominator="task")
    assert weights.shape == (0,)


def test_task_weights_are_token_means_per_task_with_dropped_groups_counted():
    weights = token_loss_weights(
        np.int32([10, 30, 2, 6]),
        ["lake", "lake", "sum", "sum"],
        np.array([True, False, True, True]),
        denominator="task",
    )
    np.testing.assert_allclose(weights, [1 / 40, 0, 1 / 8, 1 / 8], rtol=1e-6)


def test_global_weights_are_one_token_mean_over_the_batch():
    weights = token_loss_weights(
        np.int32([10, 30, 8]), ["lake", "lake", "sum"], np.array([True, True, False]), denominator="global"
    )
    np.testing.assert_allclose(weights, [1 / 48, 1 / 48, 0], rtol=1e-6)


def test_a_task_without_a_single_token_has_weight_zero():
    weights = token_loss_weights(np.int32([0, 0]), ["a", "a"], np.array([True, True]), denominator="task")
    np.testing.assert_array_equal(weights, [0, 0])


def test_weights_refuse_lengths_that_differ():
    with pytest.raises(RollartError, match="per trajectory"):
        token_loss_weights(np.int32([1]), ["a", "b"], np.array([True, True]), denominator="task")
