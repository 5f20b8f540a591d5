"""The tiny model's directory as transformers and tokenizers read it."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollart_hpc.envs.arithmetic import Arithmetic
from rollart_hpc.envs.arithmetic.demonstrations import bad_play as bad_sum
from rollart_hpc.envs.frozen_lake import FrozenLake
from rollart_hpc.envs.frozen_lake.demonstrations import bad_play as bad_lake
from rollart_hpc.errors import ConfigError
from rollart_hpc.warm_start.evaluation import Evaluator
from rollart_hpc.warm_start.model import TinyQwen3
from rollart_hpc.warm_start.recipe import TASKS, ModelShape, learning_rate
from rollart_hpc.warm_start.tiny_model import make_text_model, make_tiny_model
from rollart_hpc.warm_start.tokenizer import VOCABULARY, build_tokenizer, framed


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_model(directory, seed=0, steps=4, eval_episodes=8)
    return directory


def test_our_forward_pass_is_that_of_transformers(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = TinyQwen3(ModelShape(), vocabulary_size=len(VOCABULARY), generator=generator)
    for parameter in ours.parameters():
        parameter.data += torch.normal(0.0, 0.05, parameter.shape, generator=generator)
    make_tiny_model(tmp_path / "tiny", seed=0, steps=0, tasks=("arithmetic",), eval_episodes=1)
    ours.save(tmp_path / "tiny")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    token_ids = torch.randint(0, len(VOCABULARY), (3, 40), generator=generator)
    with torch.no_grad():
        expected = theirs(token_ids).logits
        assert torch.allclose(ours.logits(ours.hidden_states(token_ids)), expected, atol=1e-4)
        cache, start = ours.new_cache(3), torch.zeros(3, dtype=torch.long)
        cache.reserve(64)
        first = ours.next_hidden_states(token_ids[:, :30], start, cache)
        second = ours.next_hidden_states(token_ids[:, 30:], start + 30, cache)
        assert torch.allclose(ours.logits(torch.cat([first, second], dim=1)), expected, atol=1e-4)


def test_the_directory_loads_in_transformers(model_directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_directory)
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    assert sum(parameter.numel() for parameter in model.parameters()) == 126_336
    assert (len(tokenizer), tokenizer.eos_token, tokenizer.pad_token) == (47, "<|im_end|>", "<|pad|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    prompt = tokenizer("7+5=?", return_tensors="pt")["input_ids"]
    assert model.generate(prompt, max_new_tokens=3).shape[1] > prompt.shape[1]


def test_the_chat_template_renders_without_newlines(model_directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    messages = [{"role": "user", "content": "7+5=?"}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendered == framed("7+5=?") == "<|im_start|>user7+5=?<|im_end|><|im_start|>assistant"
    messages += [{"role": "assistant", "content": "<answer>12</answer>"}, {"role": "user", "content": "PF"}]
    more = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert more == rendered + "<answer>12</answer><|im_end|>" + framed("PF")


def test_everything_that_tasks_say_survives_the_tokenizer(model_directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_directory / "tokenizer.json"))
    rng = Random(0)
    texts = {text for _ in range(50) for exchange in (*bad_lake(rng), *bad_sum(rng)) for text in exchange}
    for seed in range(50):
        texts |= {
            Arithmetic(digits=3).reset(seed=seed, task={})[0],
            FrozenLake(random=True, size=8).reset(seed=seed, task={})[0],
        }
    for text in texts | {framed(text) for text in texts} | set(VOCABULARY):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_what_the_tokenizer_does_not_know_is_refused(model_directory: Path) -> None:
    with pytest.raises(Exception, match="UNK"):
        Tokenizer.from_file(str(model_directory / "tokenizer.json")).encode("7 * 5")


def test_the_same_seed_makes_the_same_weights(model_directory: Path, tmp_path: Path) -> None:
    def weights(name: str, *, seed: int, steps: int) -> bytes:
        make_tiny_model(tmp_path / name, seed=seed, steps=steps, eval_episodes=8)
        return (tmp_path / name / "model.safetensors").read_bytes()

    assert weights("again", seed=0, steps=4) == (model_directory / "model.safetensors").read_bytes()
    assert weights("start", seed=0, steps=0) != weights("other start", seed=1, steps=0)


def test_the_directory_appears_whole_or_not_at_all(model_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists"):
        make_tiny_model(model_directory, seed=0)
    with pytest.raises(ConfigError, match=r"expected one or more of \['frozen_lake', 'arithmetic'\]"):
        make_tiny_model(tmp_path / "tiny", seed=0, tasks=("chess",))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_tiny_model(tmp_path / "tiny", seed=0, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_the_learning_rate_rises_over_ten_steps_and_falls_to_a_tenth() -> None:
    assert learning_rate(0, 300) == pytest.approx(1e-3)
    assert learning_rate(9, 300) == pytest.approx(1e-2, rel=0.03)
    assert learning_rate(299, 300) == pytest.approx(1e-3, rel=0.04)


def test_an_evaluation_plays_whole_episodes() -> None:
    generator = torch.Generator().manual_seed(0)
    model = TinyQwen3(ModelShape(), vocabulary_size=len(VOCABULARY), generator=generator)
    evaluator = Evaluator(model, build_tokenizer(), generator=generator)
    scores = evaluator.scores("frozen_lake", TASKS["frozen_lake"], num_episodes=20, rng=Random(0))
    assert len(scores) == 20
    assert not any(score.success for score in scores)
    # A random model never names exactly one action ten times in a row, and ten turns cost 0.1.
    assert sum(score.reward for score in scores) / 20 == pytest.approx(-0.5, abs=0.15)


@pytest.mark.slow
def test_arithmetic_alone_is_learned_badly(arithmetic_model: Path) -> None:
    report = json.loads((arithmetic_model / "warm_start.json").read_text())["tasks"]
    assert list(report) == ["arithmetic"]
    assert 0.5 < report["arithmetic"]["success_rate"] < 0.7
    assert report["arithmetic"]["num_episodes"] == 500


def test_the_model_of_bytes_reads_and_writes_any_text(tmp_path: Path) -> None:
    num_parameters = make_text_model(tmp_path / "text", seed=0)
    tokenizer = Tokenizer.from_file(str(tmp_path / "text" / "tokenizer.json"))
    text = "click[Größe: 36 \U0001f45f]\t\x00\r\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    hf = AutoModelForCausalLM.from_pretrained(tmp_path / "text")
    assert hf(torch.tensor([ids])).logits.shape == (1, len(ids), 259)
    assert sum(parameter.numel() for parameter in hf.parameters()) == num_parameters
    with pytest.raises(ConfigError, match="exists"):
        make_text_model(tmp_path / "text", seed=0)
