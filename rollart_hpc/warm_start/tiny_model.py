"""Makes a directory with the tiny model: random weights, the warm start, an evaluation, files.

Invariants: the directory appears whole or not at all; the same seed gives the same weights on the same machine.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3Config

from rollart_hpc.errors import ConfigError
from rollart_hpc.types import Score
from rollart_hpc.warm_start.evaluation import Evaluator
from rollart_hpc.warm_start.model import TinyQwen3
from rollart_hpc.warm_start.recipe import TASKS, ModelShape
from rollart_hpc.warm_start.tokenizer import (
    END,
    PAD,
    VOCABULARY,
    build_byte_tokenizer,
    build_tokenizer,
    save_tokenizer,
)
from rollart_hpc.warm_start.training import Progress, train

REPORT_FILE = "warm_start.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """How the warm-started model plays one task, sampled at temperature 1."""

    success_rate: float
    mean_reward: float
    num_episodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartReport:
    """What `make_tiny_model` made; also in the directory, as `REPORT_FILE`."""

    seed: int
    num_steps: int
    num_parameters: int
    num_tokens: int
    """Trained on."""
    tasks: dict[str, TaskReport]
    train_seconds: float
    evaluate_seconds: float


def make_tiny_model(
    directory: Path,
    *,
    seed: int,
    steps: int = 300,
    tasks: Sequence[str] = tuple(TASKS),
    eval_episodes: int = 500,
    progress: Progress | None = None,
) -> WarmStartReport:
    """Makes a tiny Qwen3 that plays badly, in Hugging Face format.

    Args:
        directory: where it goes; must not exist.
        seed: of weights, demonstrations and evaluation.
        steps: optimizer steps of the warm start; 0 leaves random weights.
        tasks: names out of `recipe.TASKS`.
        eval_episodes: sampled of each task after the warm start.
        progress: called after each step.

    Raises:
        ConfigError: the directory exists or a task is unknown.
    """
    unknown = sorted(set(tasks) - set(TASKS))
    if unknown or not tasks:
        raise ConfigError(f"tasks are {list(tasks)}; expected one or more of {list(TASKS)}")
    with _whole(directory) as unfinished:
        report = _make(unfinished, seed, steps, tasks, eval_episodes, progress)
        (unfinished / REPORT_FILE).write_text(json.dumps(asdict(report), indent=2) + "\n")
    return report


def make_text_model(directory: Path, *, seed: int, max_positions: int = 16384) -> int:
    """Makes a tiny Qwen3 of random weights that reads and writes any text, a token a byte.

    It plays nothing; it is there to try every other part of a run with an environment whose texts the tiny model's
    words do not cover.

    Args:
        directory: where it goes; must not exist.
        seed: of the weights.
        max_positions: the longest context.

    Returns:
        The number of its parameters.

    Raises:
        ConfigError: the directory exists.
    """
    shape, tokenizer = ModelShape(max_positions=max_positions), build_byte_tokenizer()
    with _whole(directory) as unfinished:
        generator = torch.Generator().manual_seed(seed)
        model = TinyQwen3(shape, vocabulary_size=tokenizer.get_vocab_size(), generator=generator)
        model.save(unfinished)
        save_model_files(unfinished, shape, tokenizer)
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def _whole(directory: Path) -> Generator[Path]:
    """A directory to write into, which then appears under its name; one thread works meanwhile."""
    if directory.exists():
        raise ConfigError(f"{directory} exists; give a directory that does not, or remove it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        with _one_thread():
            yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _make(
    directory: Path, seed: int, steps: int, tasks: Sequence[str], eval_episodes: int, progress: Progress | None
) -> WarmStartReport:
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    shape, tokenizer = ModelShape(), build_tokenizer()
    chosen = {name: TASKS[name] for name in tasks}
    model = TinyQwen3(shape, vocabulary_size=len(VOCABULARY), generator=generator)
    begin = time.monotonic()
    num_tokens = train(model, tokenizer, chosen, rng=rng, num_steps=steps, progress=progress)
    trained = time.monotonic()
    evaluator = Evaluator(model, tokenizer, generator=generator)
    reports = {
        name: _summary(evaluator.scores(name, task, num_episodes=eval_episodes, rng=rng))
        for name, task in chosen.items()
    }
    evaluated = time.monotonic()
    model.save(directory)
    save_model_files(directory, shape)
    return WarmStartReport(
        seed=seed,
        num_steps=steps,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_tokens=num_tokens,
        tasks=reports,
        train_seconds=round(trained - begin, 2),
        evaluate_seconds=round(evaluated - trained, 2),
    )


def _summary(scores: Sequence[Score]) -> TaskReport:
    return TaskReport(
        success_rate=sum(score.success for score in scores) / len(scores),
        mean_reward=sum(score.reward for score in scores) / len(scores),
        num_episodes=len(scores),
    )


def save_model_files(directory: Path, shape: ModelShape, tokenizer: Tokenizer | None = None) -> None:
    """Writes what a model's directory has beside its weights: the configs and the tokenizer."""
    tokenizer = tokenizer or build_tokenizer()
    save_tokenizer(directory, max_length=shape.max_positions, tokenizer=tokenizer)
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    config = Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        initializer_range=shape.initializer_range,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=pad,
        dtype="float32",
    )
    config.save_pretrained(directory)
    GenerationConfig(do_sample=True, eos_token_id=end, pad_token_id=pad).save_pretrained(directory)


@contextmanager
def _one_thread() -> Generator[None]:
    """More threads are slower on matrices this small, and sum in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
