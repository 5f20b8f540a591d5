import json

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollart_hpc.config.schema import ModelSection, TrainingSection
from rollart_hpc.data_plane.backends.megatron.architecture import check_layout, read_architecture
from rollart_hpc.errors import ConfigError

CONFIG = Qwen3Config(
    architectures=["Qwen3ForCausalLM"],
    vocab_size=47,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=256,
)


@pytest.fixture
def directory(tmp_path):
    CONFIG.save_pretrained(tmp_path)
    return tmp_path


def change(directory, **values):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_shapes_by_name_are_those_of_hugging_face(directory):
    architecture = read_architecture(directory)
    for name, parameter in Qwen3ForCausalLM(CONFIG).named_parameters():
        assert architecture.tensor_shape(name) == tuple(parameter.shape), name


@pytest.mark.parametrize(
    "values",
    [{"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rope_parameters": None, "rope_theta": 5e5}],
    ids=["new", "old"],
)
def test_the_rotary_base_is_found_in_both_forms_of_the_format(directory, values):
    change(directory, **values)
    assert read_architecture(directory).rotary_base == 5e5


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, r"architectures is \['LlamaForCausalLM'\]"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' can be trained"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"head_dim": "big"}, "head_dim"),
    ],
    ids=["architecture", "activation", "rope", "type"],
)
def test_another_architecture_is_refused(directory, values, text):
    change(directory, **values)
    with pytest.raises(ConfigError, match=text):
        read_architecture(directory)


def test_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected a directory in Hugging Face format"):
        read_architecture(tmp_path / "absent")


@pytest.mark.parametrize(
    ("model", "training", "text"),
    [
        ({}, {"tensor_parallel": 4}, "does not divide the model's num_key_value_heads = 2"),
        ({}, {"pipeline_parallel": 3}, "does not divide the model's num_hidden_layers = 2"),
        ({"max_context": 257}, {}, "max_position_embeddings = 256"),
    ],
    ids=["tensor", "pipeline", "context"],
)
def test_a_layout_that_the_model_does_not_divide_into_is_refused(directory, model, training, text):
    section = ModelSection(**{"path": directory, "max_context": 256, **model})
    with pytest.raises(ConfigError, match=text):
        check_layout(read_architecture(directory), section, TrainingSection(**training))
