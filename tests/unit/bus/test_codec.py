"""Tensors travel as the arrays of their values."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from rollart_hpc.bus.codec import decode, encode


class Batch(msgspec.Struct):
    values: torch.Tensor
    others: list[torch.Tensor]


def test_a_tensor_arrives_as_an_array_where_nothing_else_is_asked_for():
    tensor = torch.arange(6, dtype=torch.float32, requires_grad=True).reshape(2, 3)
    array: Any = decode(encode({"a": tensor}), dict[str, Any])["a"]
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_a_tensor_arrives_as_one_that_can_be_written_to_where_one_is_expected():
    batch = decode(encode(Batch(torch.tensor([1, 2]), [torch.tensor([True])])), Batch)
    assert batch.values.dtype is torch.int64
    batch.values[0] = 5
    assert batch.values.tolist() == [5, 2]
    assert batch.others[0].tolist() == [True]
    assert decode(encode(np.zeros(2, np.float32)), torch.Tensor).shape == (2,)


def test_an_array_is_no_tensor_by_itself():
    assert isinstance(decode(encode(torch.zeros(1)), np.ndarray), np.ndarray)
    with pytest.raises(msgspec.ValidationError):
        decode(encode([1, 2]), torch.Tensor)


def test_a_tensor_of_a_type_that_does_not_travel_says_what_to_send():
    with pytest.raises(TypeError, match=r"tensors of torch.bfloat16 do not travel; send tensor.float\(\)"):
        encode(torch.zeros(1, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="arrays of float16 do not travel"):
        encode(torch.zeros(1, dtype=torch.float16))
