import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.errors import WeightsError
from rollart_hpc.weights.buckets import ALIGNMENT, checksum, group_into_buckets, pack, packed_size, tensor_view

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SHAPES = st.lists(st.integers(1, 9), max_size=3).map(tuple)
TENSORS = st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=12).map(
    lambda specs: [(f"t{i}", torch.randn(shape).to(dtype)) for i, (shape, dtype) in enumerate(specs)]
)


@given(tensors=TENSORS, bucket_bytes=st.integers(1, 4096))
@settings(deadline=None)
def test_slots_are_aligned_in_order_and_do_not_overlap(tensors, bucket_bytes):
    buckets = list(group_into_buckets(tensors, bucket_bytes))
    assert [slot.name for placed in buckets for slot, _ in placed] == [name for name, _ in tensors]
    for placed in buckets:
        assert packed_size(placed) <= bucket_bytes or len(placed) == 1
        assert placed[0][0].offset == 0
        assert all(slot.offset % ALIGNMENT == 0 for slot, _ in placed)
        for (before, _), (after, _) in itertools.pairwise(placed):
            assert before.offset + before.size_bytes <= after.offset


@given(tensors=TENSORS, bucket_bytes=st.integers(1, 4096))
@settings(deadline=None)
def test_what_is_packed_is_unpacked_bit_for_bit(tensors, bucket_bytes):
    unpacked = {}
    for placed in group_into_buckets(tensors, bucket_bytes):
        buffer = np.full(packed_size(placed), 0xAB, np.uint8)
        pack(placed, buffer)
        unpacked |= {slot.name: tensor_view(buffer, slot) for slot, _ in placed}
    for name, tensor in tensors:
        assert unpacked[name].dtype == tensor.dtype
        assert torch.equal(unpacked[name], tensor)


@given(tensors=TENSORS, bucket_bytes=st.integers(1, 4096))
@settings(deadline=None)
def test_no_bucket_could_have_taken_the_next_ones_first_tensor(tensors, bucket_bytes):
    buckets = list(group_into_buckets(tensors, bucket_bytes))
    for placed, following in itertools.pairwise(buckets):
        start = -(-packed_size(placed) // ALIGNMENT) * ALIGNMENT
        assert start + following[0][0].size_bytes > bucket_bytes


def test_equal_weights_have_equal_checksums_whatever_the_buffer_held():
    (placed,) = group_into_buckets([("a", torch.ones(3)), ("b", torch.ones(5))], 1024)
    dirty, clean = np.full(packed_size(placed), 7, np.uint8), np.zeros(packed_size(placed), np.uint8)
    pack(placed, dirty)
    pack(placed, clean)
    assert checksum(dirty) == checksum(clean)


def test_a_transposed_parameter_that_requires_a_gradient_is_packed_by_value():
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3)).t()
    (placed,) = group_into_buckets([("w", weight)], 1024)
    buffer = np.zeros(packed_size(placed), np.uint8)
    pack(placed, buffer)
    assert tensor_view(buffer, placed[0][0]).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_tensors_are_taken_one_bucket_at_a_time():
    taken = []

    def gather():
        for index in range(10):
            taken.append(index)
            yield f"t{index}", torch.zeros(16)

    next(group_into_buckets(gather(), 128))
    assert taken == [0, 1, 2]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        pytest.param([("a", torch.ones(1)), ("a", torch.ones(1))], "comes twice", id="name twice"),
        pytest.param([("a", torch.ones(1, dtype=torch.int64))], "int64", id="not a weight's type"),
        pytest.param([("a", torch.ones(0))], "no elements", id="empty"),
    ],
)
def test_tensors_that_cannot_travel_are_refused(tensors, message):
    with pytest.raises(WeightsError, match=message):
        list(group_into_buckets(tensors, 1024))
