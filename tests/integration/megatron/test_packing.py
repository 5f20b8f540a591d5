import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.data_plane.backends.megatron.packing import (
    check_batch,
    pack,
    runs_of_similar_length,
    split_sequences,
    whole_sequence,
)
from rollart_hpc.types import TrainBatch

lengths_lists = st.lists(st.integers(0, 40), max_size=30)


def batch(**changes) -> TrainBatch:
    fields = {
        "step": 0,
        "token_ids": np.int32([1, 2, 3, 4, 5]),
        "lengths": np.int32([3, 2]),
        "advantages": np.ones(5, np.float32),
        "loss_weights": np.float32([0, 1, 1, 0, 1]),
        "sampler_logprobs": np.zeros(5, np.float32),
        "same_version": np.uint8([0, 1, 0, 0, 0]),
    }
    return TrainBatch(**{**fields, **changes})


@given(lengths_lists, st.integers(1, 60))
def test_every_sequence_with_tokens_lies_in_one_micro_batch_within_the_bound(lengths, max_tokens):
    array = np.asarray(lengths, np.int32)
    groups = split_sequences(array, max_tokens)
    placed = [sequence for group in groups for sequence in group.tolist()]
    assert sorted(placed) == [sequence for sequence, length in enumerate(lengths) if length]
    for group in groups:
        assert array[group].sum() <= max_tokens or len(group) == 1


@given(lengths_lists)
def test_runs_cover_the_pack_and_waste_less_than_half_of_it(lengths):
    lengths = [length for length in lengths if length]
    runs = list(runs_of_similar_length([0, *np.cumsum(lengths).tolist()]))
    assert [length for _, _, run in runs for length in run] == lengths
    assert [start for start, _, _ in runs] == [0, *(end for _, end, _ in runs)][: len(runs)]
    for start, end, run in runs:
        assert end - start == sum(run)
        assert max(run) * len(run) < 2 * sum(run)


def test_a_batch_that_fits_passes():
    check_batch(batch(), vocab_size=6, max_context=3)
    check_batch(whole_sequence([5, 5]), vocab_size=6, max_context=2)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"advantages": np.ones(4, np.float32)}, "batch.advantages has 4 entries for 5 tokens"),
        ({"lengths": np.int32([3, 3])}, "sum up to 6"),
        ({"lengths": np.int32([4, 1])}, "a sequence has 4 tokens, model.max_context allows 3"),
        ({"token_ids": np.int32([1, 2, 3, 4, 6])}, "the vocabulary has 6"),
        ({"loss_weights": np.float32([0, 1, 1, 1, 1])}, "first token is marked as sampled"),
    ],
    ids=["arrays", "lengths", "context", "vocabulary", "first-token"],
)
def test_a_batch_that_contradicts_itself_or_the_model_is_refused(changes, text):
    with pytest.raises(ValueError, match=text):
        check_batch(batch(**changes), vocab_size=6, max_context=3)


@pytest.mark.filterwarnings("ignore")  # megatron warns of absent GPU libraries when it is imported
def test_rows_stand_before_the_tokens_that_they_predict():
    micro_batch = pack(batch(), np.array([1, 0]), torch.device("cpu"))
    assert micro_batch.token_ids.tolist() == [[4, 5, 1, 2, 3]]
    assert micro_batch.position_ids.tolist() == [[0, 1, 0, 1, 2]]
    assert micro_batch.rows.tolist() == [0, 2, 3]
    assert micro_batch.targets.tolist() == [5, 2, 3]
    assert micro_batch.same_version.tolist() == [False, True, False]
