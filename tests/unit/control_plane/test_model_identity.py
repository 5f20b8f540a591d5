import json
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.control_plane.model_identity import check_identity, differences, identify_model
from rollart_hpc.errors import ConfigError

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def model(directory: Path, *, tokenizer: str = "{}", **changes: Any) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({**QWEN3, **changes}))
    (directory / "tokenizer.json").write_text(tokenizer)
    return directory


def test_the_same_model_elsewhere_is_the_same(tmp_path: Path):
    saved, now = identify_model(model(tmp_path / "a")), identify_model(model(tmp_path / "b"))
    assert differences(saved, now) == []
    check_identity(saved, now)


def test_what_the_weights_do_not_depend_on_may_change(tmp_path: Path):
    saved = identify_model(model(tmp_path / "a"))
    now = identify_model(
        model(
            tmp_path / "b",
            max_position_embeddings=512,
            transformers_version="9",
            rope_theta=None,
            rope_parameters={"rope_theta": 10000.0},
        )
    )
    check_identity(saved, now)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"hidden_size": 128}, "config.json hidden_size is 128, the checkpoint has 64"),
        ({"num_hidden_layers": 3}, "config.json num_hidden_layers is 3, the checkpoint has 2"),
        ({"tie_word_embeddings": False}, "config.json tie_word_embeddings is False, the checkpoint has True"),
        ({"rope_theta": 5000.0}, "config.json rope_theta is 5000.0, the checkpoint has 10000.0"),
        ({"vocab_size": 101}, "config.json vocab_size is 101, the checkpoint has 100"),
        ({"tokenizer": '{"a": 1}'}, "the digest of tokenizer.json is "),
    ],
    ids=["width", "depth", "tied", "rope", "vocabulary", "tokenizer"],
)
def test_another_model_is_refused_with_the_keys_that_differ(tmp_path: Path, changes: dict[str, Any], line: str):
    saved, now = identify_model(model(tmp_path / "a")), identify_model(model(tmp_path / "b", **changes))
    with pytest.raises(ConfigError) as refused:
        check_identity(saved, now)
    assert line in str(refused.value)
    assert len(differences(saved, now)) == 1


def test_a_tokenizer_file_that_came_or_went_is_told(tmp_path: Path):
    saved, now = model(tmp_path / "a"), model(tmp_path / "b")
    (now / "chat_template.jinja").write_text("x")
    [came] = differences(identify_model(saved), identify_model(now))
    [went] = differences(identify_model(now), identify_model(saved))
    assert came.startswith("the digest of chat_template.jinja is ")
    assert came.endswith("the checkpoint has none")
    assert went.startswith("the digest of chat_template.jinja is absent, the checkpoint has ")


def test_a_directory_without_a_model_is_a_fault_of_the_config(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        identify_model(tmp_path)
