"""Supervised steps on demonstrations (no reinforcement learning): one optimizer step sums the tasks' token means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from rollart_hpc.config.resolve import resolve
from rollart_hpc.warm_start import recipe
from rollart_hpc.warm_start.model import TinyQwen3
from rollart_hpc.warm_start.recipe import TaskRecipe
from rollart_hpc.warm_start.tokenizer import END, PAD, VOCABULARY, framed

Demonstrate = Callable[[Random], Sequence[tuple[str, str]]]
Progress = Callable[[int, Mapping[str, float]], None]
"""Called after each step with its number, from 1, and the loss of each task that had a batch."""

_MICRO_BATCH_TOKENS = 2048
_PAD_TOKEN_ID = VOCABULARY.index(PAD)


@dataclass(frozen=True, slots=True)
class _Sequence:
    token_ids: list[int]
    loss_mask: list[int]
    """1 on tokens that are learned."""


def train(
    model: TinyQwen3,
    tokenizer: Tokenizer,
    tasks: Mapping[str, TaskRecipe],
    *,
    rng: Random,
    num_steps: int,
    progress: Progress | None = None,
) -> int:
    """Trains in place; returns the number of tokens that went through the model."""
    parameters = model.parameters()
    demonstrate: dict[str, Demonstrate] = {name: resolve(task.demonstrate) for name, task in tasks.items()}
    optimizer = torch.optim.AdamW(parameters, betas=recipe.ADAM_BETAS, weight_decay=0.0)
    num_tokens = 0
    for step in range(num_steps):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate(step, num_steps)
        optimizer.zero_grad()
        losses: dict[str, float] = {}
        for name, task in tasks.items():
            if step % task.every == 0:
                batch = [_sequence(demonstrate[name](rng), tokenizer, task) for _ in range(task.episodes)]
                losses[name] = _add_gradients(model, batch)
                num_tokens += sum(len(sequence.token_ids) for sequence in batch)
        torch.nn.utils.clip_grad_norm_(parameters, recipe.CLIP_GRAD_NORM)
        optimizer.step()
        if progress is not None:
            progress(step + 1, losses)
    return num_tokens


def _sequence(exchanges: Sequence[tuple[str, str]], tokenizer: Tokenizer, task: TaskRecipe) -> _Sequence:
    token_ids: list[int] = []
    loss_mask: list[int] = []
    for observation, action in exchanges:
        prompt = tokenizer.encode(framed(observation)).ids
        response = tokenizer.encode(action + END).ids
        token_ids += prompt + response
        loss_mask += [int(task.loss_on_observations)] * len(prompt) + [1] * len(response)
    return _Sequence(token_ids, loss_mask)


def _add_gradients(model: TinyQwen3, batch: Sequence[_Sequence]) -> float:
    """Adds the gradient of the mean loss over all learned tokens of the batch; returns that loss."""
    num_learned = sum(sum(sequence.loss_mask) for sequence in batch)
    loss = 0.0
    for sequences in _micro_batches(batch):
        length = max(len(sequence.token_ids) for sequence in sequences)
        padding = [length - len(sequence.token_ids) for sequence in sequences]
        token_ids_BT = torch.tensor(
            [s.token_ids + [_PAD_TOKEN_ID] * n for s, n in zip(sequences, padding, strict=True)]
        )
        learned_BT = torch.tensor([s.loss_mask + [0] * n for s, n in zip(sequences, padding, strict=True)]).bool()[
            :, 1:
        ]
        logits = model.logits(model.hidden_states(token_ids_BT)[:, :-1][learned_BT])
        part = functional.cross_entropy(logits, token_ids_BT[:, 1:][learned_BT], reduction="sum") / num_learned
        part.backward()  # pyright: ignore[reportUnknownMemberType]
        loss += part.item()
    return loss


def _micro_batches(batch: Sequence[_Sequence]) -> Iterator[list[_Sequence]]:
    """Sequences of like length together, each lot of about `_MICRO_BATCH_TOKENS` with its padding."""
    lot: list[_Sequence] = []
    for sequence in sorted(batch, key=lambda sequence: len(sequence.token_ids)):
        if lot and len(sequence.token_ids) * (len(lot) + 1) > _MICRO_BATCH_TOKENS:
            yield lot
            lot = []
        lot.append(sequence)
    yield lot
