import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.services import count_parameters, store_size_mb
from tests.builders import run_config


def model_of(directory: Path, dtype: str = "float32", **weights: int | None):
    config = run_config()
    model = config.model.model_copy(update={"path": directory, "dtype": dtype})
    return config.model_copy(update={"model": model, "weights": config.weights.model_copy(update=weights)})


def headers_only(path: Path, *shape: int) -> None:
    """A weights file that takes no room: its data is a hole."""
    data_bytes = 4 * math.prod(shape)
    header = json.dumps({"w": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, data_bytes]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + data_bytes)


def test_parameters_are_counted_over_all_files(tmp_path: Path):
    first = {"a": np.zeros((3, 4), np.float32), "scalar": np.zeros((), np.float32)}
    save_file(first, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    save_file({"b": np.zeros((5, 0, 2), np.float32), "c": np.zeros(7, np.int8)}, tmp_path / "model-2.safetensors")
    assert count_parameters(tmp_path) == 12 + 1 + 0 + 7


@pytest.mark.parametrize(
    "content",
    [b"", b"1234", struct.pack("<Q", 1 << 60), struct.pack("<Q", 4) + b"{{{{"],
    ids=["empty", "short", "no header", "no JSON"],
)
def test_a_torn_weights_file_is_refused_by_name(tmp_path: Path, content: bytes):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors: not a whole safetensors file"):
        count_parameters(tmp_path)


def test_a_weights_file_whose_end_is_missing_is_refused(tmp_path: Path):
    save_file({"a": np.zeros(100, np.float32)}, tmp_path / "model.safetensors")
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(300)
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        count_parameters(tmp_path)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_the_store_holds_the_versions_that_are_kept_and_those_on_their_way(tmp_path: Path, dtype: str, size: int):
    headers_only(tmp_path / "model.safetensors", 1 << 13, 1 << 13)
    one_version_mb = size << 6
    for kept in (2, 5):
        assert store_size_mb(model_of(tmp_path, dtype, versions_kept=kept)) >= (kept + 2) * one_version_mb
    grown = store_size_mb(model_of(tmp_path, dtype, versions_kept=5)) - store_size_mb(model_of(tmp_path, dtype))
    assert grown == pytest.approx(1.1 * one_version_mb, abs=1)


def test_a_tiny_model_s_store_has_room_for_alignment_and_a_given_size_is_taken_as_it_is(tmp_path: Path):
    headers_only(tmp_path / "model.safetensors", 1)
    assert store_size_mb(model_of(tmp_path)) >= 16
    assert store_size_mb(model_of(tmp_path, store_mb=5)) == 5
