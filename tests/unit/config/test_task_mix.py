import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.config.task_mix import TaskMix

WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.0, 0.2, 1.0, 3.0, 7.5]), min_size=1).filter(
    lambda weights: any(weights.values())
)


@given(WEIGHTS, st.integers(1, 9), st.integers(0, 30))
def test_every_batch_is_full_and_the_shares_follow_the_weights(
    weights: dict[str, float], groups_per_step: int, number: int
):
    mix = TaskMix(weights, groups_per_step)
    batch = mix.of_batch(number)
    assert sum(batch.values()) == groups_per_step
    assert min(batch.values()) >= 0
    total, groups = sum(weights.values()), groups_per_step * (number + 1)
    for task, count in mix.until(number + 1).items():
        assert abs(count - groups * weights[task] / total) <= len(weights) / 2


def test_shares_that_are_whole_are_those_of_every_batch():
    mix = TaskMix({"lake": 1, "sums": 4}, 20)
    assert [mix.of_batch(number) for number in range(3)] == [{"lake": 4, "sums": 16}] * 3


def test_a_light_task_has_its_turn_every_few_batches():
    mix = TaskMix({"light": 1, "heavy": 9}, 2)
    assert sum(mix.of_batch(number)["light"] for number in range(20)) == 4


def test_weights_of_0_alone_are_refused():
    with pytest.raises(ValueError, match="no weight is above 0"):
        TaskMix({"a": 0.0}, 2)
