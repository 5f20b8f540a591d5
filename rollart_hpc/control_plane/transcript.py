"""Transcript: a trajectory as it grows, in words and in tokens.

Invariant: words and tokens of one event come in together, without an await between them; whenever the trajectory is
interrupted, its `TurnLog` is consistent, and a transcript that is made of that log is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from rollart_hpc.types import FinishReason, Float32Array, GenerateResult, Span, Ticket, Turn, TurnLog


class Transcript:
    """What was observed, sampled and answered so far; one bytearray per array, no copies per turn.

    Thousands of them live in one process: nothing is kept that can be made when the trajectory ends.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        """Those that the environment has answered."""
        self.observation = ""
        """What follows the last turn, or the reset."""
        self.action: str | None = None
        """Sampled after ``observation``, not answered yet."""
        self.finish_reason: FinishReason | None = None
        """Of ``action``."""
        self.token_ids = bytearray()
        self.spans: list[Span] = []
        self.num_cached = 0
        self.num_prompt = 0
        self.tokens_by_hardware: Counter[str] = Counter()
        self._loss_mask = bytearray()
        self._sampled_logprobs = bytearray()

    def __len__(self) -> int:
        """Tokens."""
        return len(self._loss_mask)

    @property
    def num_sampled(self) -> int:
        """Actions that were sampled, the one that is not answered included."""
        return len(self.turns) + (self.action is not None)

    def begin(self, observation: str, token_ids: bytes) -> None:
        """The first observation."""
        self.observation = observation
        self._observe(token_ids)

    def act(self, action: str, result: GenerateResult, hardware: str) -> None:
        """The policy's answer to the observation, sampled by a worker of a hardware class."""
        start, count = len(self), len(result.token_ids) // 4
        self.action, self.finish_reason = action, result.finish_reason
        self.num_prompt += start
        self.num_cached += result.num_cached_tokens
        self.tokens_by_hardware[hardware] += count
        self.token_ids += result.token_ids
        self._loss_mask += b"\x01" * count
        self._sampled_logprobs += result.logprobs
        for span in result.spans:
            previous = self.spans[-1] if self.spans else None
            if previous and previous.version == span.version:
                self.spans[-1] = Span(span.version, previous.start, start + span.end)
            else:
                self.spans.append(Span(span.version, start + span.start, start + span.end))

    def answer(self, reward: float, observation: str, token_ids: bytes) -> None:
        """The environment's answer to the action.

        Args:
            reward: of the action.
            observation: what follows it.
            token_ids: the observation's, with what the chat needs before it; none where the policy will not see it.
        """
        if self.action is None or self.finish_reason is None:
            raise RuntimeError("there is no action to answer")
        turn = Turn(observation=self.observation, action=self.action, reward=reward, finish_reason=self.finish_reason)
        self.turns.append(turn)
        self.observation, self.action, self.finish_reason = observation, None, None
        self._observe(token_ids)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
        """Up to the last sampled token: an observation that nothing answered may not even fit the context."""
        end = self._loss_mask.rfind(1) + 1
        return (
            np.frombuffer(bytes(self.token_ids[: 4 * end]), np.int32),
            np.frombuffer(bytes(self._loss_mask[:end]), np.uint8),
            self._logprobs(end),
        )

    @classmethod
    def from_log(cls, log: TurnLog) -> Transcript:
        """The transcript that gave the log."""
        transcript = cls()
        transcript.turns = list(log.turns)
        transcript.observation, transcript.action, transcript.finish_reason = (
            log.observation,
            log.action,
            log.finish_reason,
        )
        transcript.token_ids = bytearray(log.token_ids)
        transcript.spans = list(log.spans)
        transcript.num_cached, transcript.num_prompt = log.num_cached_tokens, log.num_prompt_tokens
        transcript.tokens_by_hardware = Counter(log.tokens_by_hardware)
        transcript._loss_mask = bytearray(log.loss_mask)
        sampled = np.frombuffer(log.logprobs, np.float32)[np.frombuffer(log.loss_mask, np.bool_)]
        transcript._sampled_logprobs = bytearray(sampled.tobytes())
        return transcript

    def to_log(self, ticket: Ticket, seconds: Mapping[str, float]) -> TurnLog:
        """All of it, as it stands now."""
        return TurnLog(
            trajectory_id=ticket.trajectory_id,
            group_id=ticket.group_id,
            task=ticket.task,
            seed=ticket.seed,
            turns=tuple(self.turns),
            observation=self.observation,
            action=self.action,
            finish_reason=self.finish_reason,
            token_ids=bytes(self.token_ids),
            loss_mask=bytes(self._loss_mask),
            logprobs=self._logprobs(len(self)).tobytes(),
            spans=tuple(self.spans),
            num_cached_tokens=self.num_cached,
            num_prompt_tokens=self.num_prompt,
            tokens_by_hardware=dict(self.tokens_by_hardware),
            seconds=dict(seconds),
        )

    def _observe(self, token_ids: bytes) -> None:
        count = len(token_ids) // 4
        self.token_ids += token_ids
        self._loss_mask += bytes(count)

    def _logprobs(self, end: int) -> Float32Array:
        """Of the tokens before ``end``, 0 where none was sampled; ``end`` must not cut a response."""
        logprobs = np.zeros(end, np.float32)
        logprobs[np.frombuffer(bytes(self._loss_mask[:end]), np.bool_)] = np.frombuffer(
            bytes(self._sampled_logprobs), np.float32
        )
        return logprobs
