"""How well the warm-started model plays: sampled episodes, scored by the tasks' own reward functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from rollart_hpc.config.resolve import resolve
from rollart_hpc.interfaces import Environment
from rollart_hpc.types import Episode, FinishReason, Score, Turn
from rollart_hpc.warm_start.model import KeyValueCache, TinyQwen3
from rollart_hpc.warm_start.recipe import TaskRecipe
from rollart_hpc.warm_start.tokenizer import END, VOCABULARY, framed


@dataclass(slots=True)
class _Player:
    """One episode being played."""

    environment: Environment
    seed: int
    observation: str
    info: dict[str, Any]
    unread: list[int] = field(default_factory=list[int])
    """Tokens of the past turn that the model's cache does not hold yet."""
    turns: list[Turn] = field(default_factory=list[Turn])
    terminated: bool = False

    def act(self, action: str, finish_reason: FinishReason) -> None:
        """Plays one turn."""
        before = self.observation
        self.observation, reward, self.terminated, _, info = self.environment.step(action)
        self.info |= info
        self.turns.append(Turn(observation=before, action=action, reward=reward, finish_reason=finish_reason))

    def episode(self, task: str) -> Episode:
        """The episode as reward functions see it."""
        return Episode(
            task=task,
            seed=self.seed,
            turns=self.turns,
            final_observation=self.observation,
            terminated=self.terminated,
            truncated=not self.terminated,
            info=self.info,
        )


class Evaluator:
    """Plays episodes by sampling at temperature 1, all at the same time."""

    def __init__(self, model: TinyQwen3, tokenizer: Tokenizer, *, generator: torch.Generator) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._generator = generator
        self._end_token_id = VOCABULARY.index(END)

    @torch.no_grad()
    def scores(self, name: str, task: TaskRecipe, *, num_episodes: int, rng: Random) -> list[Score]:
        """The scores of ``num_episodes`` episodes on seeds that ``rng`` draws."""
        players = [_seated(task, seed=rng.getrandbits(31)) for _ in range(num_episodes)]
        self._play(players, task)
        score: Callable[[Episode], Awaitable[Score]] = resolve(task.reward)

        async def score_all() -> list[Score]:
            return [await score(player.episode(name)) for player in players]

        return asyncio.run(score_all())

    def _play(self, players: list[_Player], task: TaskRecipe) -> None:
        cache = self._model.new_cache(len(players))
        lengths_B = torch.zeros(len(players), dtype=torch.long)
        for _ in range(task.max_turns):
            lengths_B = self._turn(players, lengths_B, cache, task.max_new_tokens)
            going_on = [row for row, player in enumerate(players) if not player.terminated]
            if not going_on:
                return
            rows = torch.tensor(going_on)
            players, lengths_B, cache = [players[row] for row in going_on], lengths_B[rows], cache.select(rows)

    def _turn(self, players: list[_Player], lengths_B: Tensor, cache: KeyValueCache, max_new_tokens: int) -> Tensor:
        """Lets every player act once; returns how many tokens the cache now holds of each."""
        prompts = [p.unread + self._tokenizer.encode(framed(p.observation)).ids for p in players]
        sizes_B = torch.tensor([len(prompt) for prompt in prompts])
        padded_BT = torch.tensor([prompt + [0] * (int(sizes_B.max()) - len(prompt)) for prompt in prompts])
        cache.reserve(int(lengths_B.max()) + padded_BT.shape[1] + max_new_tokens)
        rows = torch.arange(len(players))
        hidden_BE = self._model.next_hidden_states(padded_BT, lengths_B, cache)[rows, sizes_B - 1]
        lengths_B = lengths_B + sizes_B
        responses: list[list[int]] = [[] for _ in players]
        is_writing_B = torch.ones(len(players), dtype=torch.bool)
        for index in range(max_new_tokens):
            probabilities_BV = self._model.logits(hidden_BE).softmax(-1)
            tokens_B = torch.multinomial(probabilities_BV, 1, generator=self._generator)[:, 0]
            for response, token, is_writing in zip(responses, tokens_B.tolist(), is_writing_B.tolist(), strict=True):
                if is_writing:
                    response.append(token)
            is_writing_B &= tokens_B != self._end_token_id
            if index == max_new_tokens - 1 or not is_writing_B.any():
                break
            hidden_BE = self._model.next_hidden_states(tokens_B[:, None], lengths_B, cache)[:, 0]
            # A row that has ended writes where its next observation will overwrite it.
            lengths_B = lengths_B + is_writing_B
        for player, response in zip(players, responses, strict=True):
            self._finish(player, response)
        return lengths_B

    def _finish(self, player: _Player, response: list[int]) -> None:
        has_ended = response[-1] == self._end_token_id
        player.unread = [self._end_token_id] if has_ended else [response[-1], self._end_token_id]
        action = self._tokenizer.decode(response[:-1] if has_ended else response, skip_special_tokens=False)
        player.act(action, FinishReason.STOP if has_ended else FinishReason.LENGTH)


def _seated(task: TaskRecipe, *, seed: int) -> _Player:
    environment: Environment = resolve(task.environment)()
    observation, info = environment.reset(seed=seed, task={})
    return _Player(environment, seed, observation, dict(info))
