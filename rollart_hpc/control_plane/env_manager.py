"""EnvManager: one trajectory from its ticket to its score (paper section 6.1).

Consumes a ticket; produces one `Trajectory`, a failed one when the environment, the reward or the generation
failed for reasons that are not the policy's; waits for the environment, the LLMProxy and the reward, each with a
deadline; woken by their answers. Every EnvManager goes at its own pace: a slow environment delays nobody else. Where
the mode says otherwise, it waits for the others of its worker (`Lockstep`), and its own deadlines do not run meanwhile.

Token ids are the truth: a prompt is the ids so far plus the new observation's, never a re-rendered text.

A ticket with the log of an earlier attempt goes on where that ended, if its environment can be rebuilt; else it
starts again and says why. It may be cancelled at any await: `log` then has all that can be gone on with.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.llm_proxy import LLMProxy
from rollart_hpc.control_plane.lockstep import Activity, Lockstep
from rollart_hpc.control_plane.rebuilding import rebuild
from rollart_hpc.control_plane.running_episode import RunningEpisode
from rollart_hpc.control_plane.transcript import Transcript
from rollart_hpc.control_plane.turn_clock import TurnClock, TurnTimeout
from rollart_hpc.data_plane.environment_host import EnvironmentHost
from rollart_hpc.data_plane.environment_spec import CONFIGURATION
from rollart_hpc.errors import EnvironmentFault, RewardFault, RollartError, raised_text
from rollart_hpc.rewards.payload import Played
from rollart_hpc.types import (
    Episode,
    FinishReason,
    GenerateRequest,
    Score,
    Ticket,
    Trajectory,
    TurnLog,
)

_log = logging.getLogger(__name__)
_NOT_REPLAYABLE = "environment is not replayable"
_LONG_OBSERVATION = 1 << 15
"""Characters."""
_CHARACTERS_PER_TOKEN = 64
"""More than any text has on average."""


class Scorer(Protocol):
    """What gives an episode its score: the RewardGateway."""

    async def score(self, episode: Episode, played: Played) -> Score:
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
    lockstep: Lockstep


class EnvManager:
    """Plays one ticket, once."""

    def __init__(self, playground: Playground, ticket: Ticket) -> None:
        self._all, self._ticket = playground, ticket
        self._task = playground.config.tasks[ticket.task]
        self._tag = playground.config.tag_of(ticket.task)
        self._transcript = Transcript.from_log(ticket.log) if ticket.log else Transcript()
        self._seconds: defaultdict[str, float] = defaultdict(float, ticket.log.seconds if ticket.log else {})
        self._turn = TurnClock(ticket.turn_timeout_s or playground.config.turn_timeout_s(ticket.task))
        self._num_continued = 0
        self._restarted = ""
        self._sticky: str | None = None
        self._phase = ""
        """What it waits for, or waited for last."""

    async def play(self) -> Trajectory:
        """Plays, scores and returns the trajectory; failures are data."""
        timeout_s = self._ticket.timeout_s or self._all.config.rollout.trajectory_timeout_s
        try:
            with self._all.lockstep.player() as self._player:
                async with asyncio.timeout(timeout_s) as self._deadline:
                    episode = await self._continued() or await self._played()
                    return self._scored(episode, await self._score(episode))
        except Exception as error:
            return self._failed_by(error, timeout_s)

    def _failed_by(self, error: Exception, timeout_s: float) -> Trajectory:
        """The failure that an exception is; what nobody has thought of costs this trajectory, not all of its worker."""
        retryable = True
        match error:
            case TurnTimeout():
                source = "as measured" if self._ticket.turn_timeout_s else f"tasks.{self._ticket.task}.turn_timeout_s"
                cause = "turn_timeout"
                detail = f"a turn was not over within {self._turn.timeout_s:g} s ({source}): {self._place}"
            case TimeoutError():
                source = "as measured" if self._ticket.timeout_s else "rollout.trajectory_timeout_s"
                cause, detail = "trajectory_timeout", f"no score within {timeout_s:g} s ({source}): {self._place}"
            case EnvironmentFault():
                cause, detail, retryable = f"environment {error.cause}", str(error), error.cause != CONFIGURATION
            case RewardFault():
                cause, detail = f"reward {error.cause}", str(error)
            case RollartError():
                cause, detail = "generation", str(error)
            case _:
                _log.error("trajectory %s: unexpected", self._ticket.trajectory_id, exc_info=error)
                cause, detail = "unexpected", raised_text(error)
        return self._failed(cause, detail, retryable=retryable)

    @property
    def _place(self) -> str:
        return f"it waited for {self._phase} after {len(self._transcript.turns)} actions"

    def log(self) -> TurnLog | None:
        """All that was played, for another attempt to go on from; None while no action is sampled."""
        return self._transcript.to_log(self._ticket, self._seconds) if self._transcript.num_sampled else None

    async def _continued(self) -> Episode | None:
        """The episode from where the ticket's log ends; None without a log, and where it must start again."""
        log = self._ticket.log
        if log is None:
            return None
        if not self._all.host.properties(self._ticket.task).replayable:
            self._start_again(_NOT_REPLAYABLE)
            return None
        async with self._open() as episode:
            with self._waiting_for("rebuild"):
                difference = await self._rebuild(episode, log)
            if not difference:
                self._num_continued = self._transcript.num_sampled
                return await self._play_on(episode)
        self._start_again(difference)
        return None

    async def _rebuild(self, episode: RunningEpisode, log: TurnLog) -> str:
        """Brings the environment to where the log ends; returns what prevents that, if anything does."""
        try:
            difference = await rebuild(episode, log)
            if difference or episode.has_ended or log.action is not None:
                return difference
            # A config that changed since, such as the turn limit, may ask for tokens that are not there.
            expected = await self._encoded(self._all.chat.next_observation, log.observation)
        except EnvironmentFault as fault:
            _log.warning("trajectory %s: its environment cannot be rebuilt: %s", log.trajectory_id, fault)
            return f"environment {fault.cause} while it was rebuilt"
        return "" if log.token_ids.endswith(expected) else f"tokens of turn {len(log.turns) + 1} differ"

    def _start_again(self, reason: str) -> None:
        _log.warning("trajectory %s starts again: %s", self._ticket.trajectory_id, reason)
        self._restarted = reason
        self._transcript = Transcript()
        self._seconds = defaultdict(float, rebuild=self._seconds["rebuild"])

    async def _played(self) -> Episode:
        """The episode from its beginning."""
        async with self._open() as episode:
            with self._waiting_for("reset"):
                observation = await episode.reset(self._ticket.seed)
            token_ids = await self._encoded(self._all.chat.first_observation, observation)
            self._transcript.begin(observation, token_ids)
            return await self._play_on(episode)

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[RunningEpisode]:
        self._phase = "a free environment process"
        async with self._all.host.open(self._ticket.task) as session:
            with self._player.taking_turns():
                yield RunningEpisode(session, max_turns=self._task.max_turns)

    async def _play_on(self, episode: RunningEpisode) -> Episode:
        while not episode.has_ended:
            action = self._transcript.action
            if action is None:
                action = await self._sample()
            if action is None:
                episode.truncated = True
            else:
                await self._step(episode, action)
                self._turn.end()
        return Episode(
            task=self._ticket.task,
            seed=self._ticket.seed,
            turns=self._transcript.turns,
            final_observation=self._transcript.observation,
            terminated=episode.terminated,
            truncated=episode.truncated,
            info=episode.info,
        )

    async def _sample(self) -> str | None:
        """The policy's next action; None where the context has no room for one."""
        if len(self._transcript) >= self._all.config.model.max_context:
            return None
        await self._begin(Activity.GENERATE)
        async with self._turn.running():
            with self._waiting_for("generate"):
                result, self._sticky = await self._all.proxy.generate(self._request(), self._sticky)
        if result.finish_reason is FinishReason.CONTEXT:
            return None
        action = self._all.chat.response_text(np.frombuffer(result.token_ids, np.int32).tolist())
        self._transcript.act(action, result, self._all.proxy.hardware_of(self._sticky))
        return action

    def _request(self) -> GenerateRequest:
        config = self._all.config
        turn = len(self._transcript.turns)
        return GenerateRequest(
            request_id=self._all.proxy.next_request_id(),
            token_ids=bytes(self._transcript.token_ids),
            max_tokens=self._task.max_new_tokens,
            temperature=config.generation.temperature,
            top_p=config.generation.top_p,
            stop_token_ids=self._all.chat.stop_token_ids,
            tag=self._tag,
            seed=turn_seed(config.run.seed, self._ticket.trajectory_id, turn)
            if config.generation.deterministic
            else None,
        )

    async def _step(self, episode: RunningEpisode, action: str) -> None:
        await self._begin(Activity.STEP)
        async with self._turn.running():
            with self._waiting_for("step"):
                state = await episode.step(action)
        token_ids = b""
        if not episode.has_ended:
            token_ids = self._turn_end() + await self._encoded(self._all.chat.next_observation, state.observation)
        self._transcript.answer(state.reward, state.observation, token_ids)

    def _turn_end(self) -> bytes:
        """A response that was cut has no stop token: the chat needs one before the next observation."""
        if self._transcript.finish_reason is FinishReason.STOP:
            return b""
        return np.asarray(self._all.chat.stop_token_ids[:1], np.int32).tobytes()

    async def _encoded(self, encode: Callable[[str], bytes], observation: str) -> bytes:
        """The observation's token ids; a long one is encoded beside the event loop, so that no other turn waits.

        Of one that cannot fit into the context only as much is encoded as shows that it does not.
        """
        if len(observation) <= _LONG_OBSERVATION:
            return encode(observation)
        limit = max(_LONG_OBSERVATION, _CHARACTERS_PER_TOKEN * self._all.config.model.max_context)
        return await asyncio.to_thread(encode, observation[:limit])

    async def _score(self, episode: Episode) -> Score:
        await self._begin(Activity.SCORE)
        with self._waiting_for("reward"):
            token_ids, loss_mask, _ = self._transcript.arrays()
            played = Played(trajectory_id=self._ticket.trajectory_id, token_ids=token_ids, loss_mask=loss_mask)
            return await self._all.rewards.score(episode, played)

    async def _begin(self, activity: Activity) -> None:
        """Waits for the others where the mode says so: their time is not its own, so its deadline stands still."""
        turn = self._player.begin(activity)
        if turn is None:
            return
        loop, deadline = asyncio.get_running_loop(), self._deadline.when()
        began = loop.time()
        self._deadline.reschedule(None)
        with self._waiting_for("batch_wait"):
            await turn
        if deadline is not None:
            self._deadline.reschedule(deadline + loop.time() - began)

    @contextmanager
    def _waiting_for(self, phase: str) -> Generator[None]:
        """Adds up what a phase took that was not cut short."""
        self._phase, begin = phase, time.perf_counter()
        yield
        self._seconds[phase] += time.perf_counter() - begin

    def _scored(self, episode: Episode, score: Score) -> Trajectory:
        return self._trajectory(
            self._transcript,
            reward=score.reward,
            success=score.success,
            metrics=score.metrics,
            truncated=episode.truncated,
        )

    def _failed(self, cause: str, detail: str = "", *, retryable: bool = True) -> Trajectory:
        _log.warning("trajectory %s failed: %s", self._ticket.trajectory_id, detail or cause)
        return self._trajectory(Transcript(), failure=cause, failure_detail=detail, retryable=retryable)

    def _trajectory(
        self,
        transcript: Transcript,
        *,
        reward: float = 0.0,
        success: bool = False,
        truncated: bool = False,
        failure: str = "",
        failure_detail: str = "",
        retryable: bool = True,
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
            num_turns=len(self._transcript.turns),
            num_cached_tokens=transcript.num_cached,
            num_prompt_tokens=transcript.num_prompt,
            tokens_by_hardware=dict(transcript.tokens_by_hardware),
            failure=failure,
            failure_detail=failure_detail,
            retryable=retryable,
            seconds=dict(self._seconds),
            slowest_turn_s=self._turn.slowest_s,
            metrics=metrics or {},
            num_continued_turns=self._num_continued,
            restarted=self._restarted,
        )


def turn_seed(run_seed: int, trajectory_id: str, turn: int) -> int:
    """The sampler's seed of one turn: the same whenever and wherever it is generated; below 2**63."""
    digest = hashlib.blake2b(f"{run_seed}/{trajectory_id}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
