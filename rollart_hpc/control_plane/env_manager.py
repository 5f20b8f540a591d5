"""EnvManager: one trajectory from its ticket to its score (paper section 6.1).

Consumes a ticket; produces one `Trajectory`, a failed one when the environment, the reward or the generation
failed for reasons that are not the policy's; waits for the environment, the LLMProxy and the reward, each with a
deadline; woken by their answers. Every EnvManager goes at its own pace: a slow environment delays nobody else.

Token ids are the truth: a prompt is the ids so far plus the new observation's, never a re-rendered text.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.llm_proxy import LLMProxy
from rollart_hpc.data_plane.environment_host import EnvironmentHost, EnvironmentSession
from rollart_hpc.errors import EnvironmentFault, RewardFault, RollartError
from rollart_hpc.types import (
    Episode,
    FinishReason,
    GenerateRequest,
    GenerateResult,
    Score,
    Span,
    Ticket,
    Trajectory,
    Turn,
)

_log = logging.getLogger(__name__)
_LONG_OBSERVATION = 1 << 15
"""Characters."""
_CHARACTERS_PER_TOKEN = 64
"""More than any text has on average."""


class Scorer(Protocol):
    """What gives an episode its score: the RewardGateway."""

    async def score(self, episode: Episode) -> Score:
        """The score; raises RewardFault when there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Playground:
    """What all EnvManagers of one worker share."""

    worker: str
    config: RunConfig
    chat: ChatFormat
    host: EnvironmentHost
    proxy: LLMProxy
    rewards: Scorer


class _Transcript:
    """The tokens of a trajectory as they grow; one bytearray per array, no copies per turn."""

    def __init__(self) -> None:
        self.token_ids = bytearray()
        self._loss_mask = bytearray()
        self._logprobs = bytearray()
        self.spans: list[Span] = []
        self.num_cached = 0
        self.num_prompt = 0

    def __len__(self) -> int:
        return len(self._loss_mask)

    def observe(self, token_ids: bytes) -> None:
        count = len(token_ids) // 4
        self.token_ids += token_ids
        self._loss_mask += bytes(count)
        self._logprobs += bytes(4 * count)

    def act(self, result: GenerateResult) -> None:
        start, count = len(self), len(result.token_ids) // 4
        self.num_prompt += start
        self.num_cached += result.num_cached_tokens
        self.token_ids += result.token_ids
        self._loss_mask += b"\x01" * count
        self._logprobs += result.logprobs
        for span in result.spans:
            previous = self.spans[-1] if self.spans else None
            if previous and previous.version == span.version:
                self.spans[-1] = Span(span.version, previous.start, start + span.end)
            else:
                self.spans.append(Span(span.version, start + span.start, start + span.end))

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
        """Up to the last sampled token: an observation that nothing answered may not even fit the context."""
        end = self._loss_mask.rfind(1) + 1
        return (
            np.frombuffer(bytes(self.token_ids[: 4 * end]), np.int32),
            np.frombuffer(bytes(self._loss_mask[:end]), np.uint8),
            np.frombuffer(bytes(self._logprobs[: 4 * end]), np.float32),
        )


class EnvManager:
    """Plays one ticket."""

    def __init__(self, playground: Playground, ticket: Ticket) -> None:
        self._all, self._ticket = playground, ticket
        self._task = playground.config.tasks[ticket.task]
        self._tag = playground.config.tag_of(ticket.task)
        self._transcript = _Transcript()
        self._turns: list[Turn] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._sticky: str | None = None

    async def play(self) -> Trajectory:
        """Plays, scores and returns the trajectory; failures are data."""
        try:
            async with asyncio.timeout(self._all.config.rollout.trajectory_timeout_s):
                async with self._all.host.open(self._ticket.task) as session:
                    episode = await self._play_episode(session)
                return self._scored(episode, await self._score(episode))
        except TimeoutError:
            return self._failed("trajectory_timeout")
        except EnvironmentFault as fault:
            return self._failed(f"environment {fault.cause}", str(fault))
        except RewardFault as fault:
            return self._failed(f"reward {fault.cause}", str(fault))
        except RollartError as error:
            return self._failed("generation", str(error))

    async def _play_episode(self, session: EnvironmentSession) -> Episode:
        begin = time.perf_counter()
        state = await session.reset(self._ticket.seed)
        self._seconds["reset"] += time.perf_counter() - begin
        info, observation = dict(state.info), state.observation
        self._transcript.observe(await self._encoded(self._all.chat.first_observation, observation))
        terminated = truncated = False
        while not terminated and not truncated:
            result = await self._generate()
            if result.finish_reason is FinishReason.CONTEXT:
                truncated = True
                break
            action = self._all.chat.response_text(np.frombuffer(result.token_ids, np.int32).tolist())
            begin = time.perf_counter()
            state = await session.step(action)
            self._seconds["step"] += time.perf_counter() - begin
            self._turns.append(
                Turn(
                    observation=observation,
                    action=action,
                    reward=state.reward,
                    finish_reason=result.finish_reason,
                )
            )
            info.update(state.info)
            observation, terminated, truncated = state.observation, state.terminated, state.truncated
            truncated = truncated or (not terminated and len(self._turns) >= self._task.max_turns)
            if not terminated and not truncated:
                self._close_turn(result)
                self._transcript.observe(await self._encoded(self._all.chat.next_observation, observation))
        return Episode(
            task=self._ticket.task,
            seed=self._ticket.seed,
            turns=self._turns,
            final_observation=observation,
            terminated=terminated,
            truncated=truncated,
            info=info,
        )

    async def _generate(self) -> GenerateResult:
        if len(self._transcript) >= self._all.config.model.max_context:
            return GenerateResult(0, b"", b"", (), FinishReason.CONTEXT)
        generation = self._all.config.generation
        begin = time.perf_counter()
        request = GenerateRequest(
            request_id=self._all.proxy.next_request_id(),
            token_ids=bytes(self._transcript.token_ids),
            max_tokens=self._task.max_new_tokens,
            temperature=generation.temperature,
            top_p=generation.top_p,
            stop_token_ids=self._all.chat.stop_token_ids,
            tag=self._tag,
        )
        result, self._sticky = await self._all.proxy.generate(request, self._sticky)
        self._seconds["generate"] += time.perf_counter() - begin
        if result.finish_reason is not FinishReason.CONTEXT:
            self._transcript.act(result)
        return result

    async def _encoded(self, encode: Callable[[str], bytes], observation: str) -> bytes:
        """The observation's token ids; a long one is encoded beside the event loop, so that no other turn waits.

        Of one that cannot fit into the context only as much is encoded as shows that it does not.
        """
        if len(observation) <= _LONG_OBSERVATION:
            return encode(observation)
        limit = max(_LONG_OBSERVATION, _CHARACTERS_PER_TOKEN * self._all.config.model.max_context)
        return await asyncio.to_thread(encode, observation[:limit])

    def _close_turn(self, result: GenerateResult) -> None:
        """A response that was cut has no stop token: the chat needs one before the next observation."""
        if result.finish_reason is not FinishReason.STOP:
            self._transcript.observe(np.asarray(self._all.chat.stop_token_ids[:1], np.int32).tobytes())

    async def _score(self, episode: Episode) -> Score:
        begin = time.perf_counter()
        score = await self._all.rewards.score(episode)
        self._seconds["reward"] += time.perf_counter() - begin
        return score

    def _scored(self, episode: Episode, score: Score) -> Trajectory:
        return self._trajectory(
            self._transcript,
            reward=score.reward,
            success=score.success,
            metrics=score.metrics,
            truncated=episode.truncated,
        )

    def _failed(self, cause: str, detail: str = "") -> Trajectory:
        _log.warning("trajectory %s failed: %s", self._ticket.trajectory_id, detail or cause)
        return self._trajectory(_Transcript(), failure=cause, failure_detail=detail)

    def _trajectory(
        self,
        transcript: _Transcript,
        *,
        reward: float = 0.0,
        success: bool = False,
        truncated: bool = False,
        failure: str = "",
        failure_detail: str = "",
        metrics: dict[str, float] | None = None,
    ) -> Trajectory:
        token_ids, loss_mask, logprobs = transcript.arrays()
        spans = tuple(transcript.spans)
        return Trajectory(
            trajectory_id=self._ticket.trajectory_id,
            group_id=self._ticket.group_id,
            task=self._ticket.task,
            seed=self._ticket.seed,
            worker=self._all.worker,
            token_ids=token_ids,
            loss_mask=loss_mask,
            logprobs=logprobs,
            spans=spans,
            start_version=spans[0].version if spans else self._ticket.admitted_version,
            reward=reward,
            success=success,
            truncated=truncated,
            num_turns=len(self._turns),
            num_cached_tokens=transcript.num_cached,
            num_prompt_tokens=transcript.num_prompt,
            failure=failure,
            failure_detail=failure_detail,
            seconds=dict(self._seconds),
            metrics=metrics or {},
        )


def too_large(trajectory: Trajectory, size_bytes: int) -> Trajectory:
    """The same trajectory as one that failed because the bus cannot carry it; playing it again would not help."""
    nothing = _Transcript().arrays()
    return msgspec.structs.replace(
        trajectory,
        token_ids=nothing[0],
        loss_mask=nothing[1],
        logprobs=nothing[2],
        spans=(),
        failure="too large for the bus",
        failure_detail=f"{size_bytes} bytes, at most {MAX_PAYLOAD_BYTES} travel",
        retryable=False,
    )
