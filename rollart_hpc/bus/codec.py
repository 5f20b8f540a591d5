"""The one codec: msgpack by msgspec, numpy arrays as raw bytes in an extension type.

Nothing is ever unpickled. An array is sent as ``[dtype, shape, bytes]`` under extension code 1, so that
the codec needs no schema to read it back; it is decoded as a read-only view of the message. A tensor travels as the
array of its values; where a tensor is expected it is made of one again.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

_ARRAY_CODE = 1
_ALLOWED_DTYPES = frozenset({"int32", "int64", "float32", "float64", "uint8", "bool"})

T = TypeVar("T")
Array = npt.NDArray[Any]


def _encode_array(value: object) -> object:
    if (tensor := _tensor_type()) is not None and isinstance(value, tensor):
        value = _array_of(value)
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        if array.dtype.name not in _ALLOWED_DTYPES:
            raise TypeError(f"arrays of {array.dtype} do not travel; expected {sorted(_ALLOWED_DTYPES)}")
        header = msgspec.msgpack.encode((array.dtype.name, array.shape))
        body = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        return msgspec.msgpack.Ext(_ARRAY_CODE, len(header).to_bytes(2, "little") + header + body)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} does not travel; expected plain values, structs or arrays")


def _tensor_type() -> type | None:
    """torch.Tensor, where somebody has imported torch; the bus itself does not."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


def _array_of(tensor: Any) -> Array:
    try:
        return cast(Array, tensor.detach().cpu().numpy())
    except TypeError as error:
        raise TypeError(f"tensors of {tensor.dtype} do not travel; send tensor.float()") from error


def _read_array(code: int, data: memoryview) -> Array:
    if code != _ARRAY_CODE:
        raise ValueError(f"unknown extension code {code}")
    header_size = int.from_bytes(data[:2], "little")
    dtype, shape = msgspec.msgpack.decode(data[2 : 2 + header_size], type=tuple[str, tuple[int, ...]])
    if dtype not in _ALLOWED_DTYPES:
        raise ValueError(f"array of {dtype} refused; expected {sorted(_ALLOWED_DTYPES)}")
    return np.frombuffer(data, dtype=dtype, offset=2 + header_size).reshape(shape)


def _accept_array(expected: type, value: object) -> object:
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        if expected is _tensor_type():
            return sys.modules["torch"].from_numpy(array.copy())  # a tensor may be written to, the message may not
        return array
    raise ValueError(f"expected {expected}, got {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(value: object) -> bytes:
    """Any struct, plain value or numpy array (nested too) as one message."""
    return _encoder.encode(value)


def decode(data: bytes | memoryview, as_type: type[T]) -> T:
    """The message as ``as_type``.

    Raises:
        msgspec.ValidationError: the message does not fit the type.
    """
    decoder = _decoders.get(as_type)
    if decoder is None:
        decoder = msgspec.msgpack.Decoder(as_type, ext_hook=_read_array, dec_hook=_accept_array)
        _decoders[as_type] = decoder
    return cast(T, decoder.decode(data))
