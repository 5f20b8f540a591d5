"""What EnvManagers are played on in tests: the words of the tiny tokenizer, a judge, and scripts for the engine."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from rollart_hpc.control_plane.env_manager import EnvManager, Playground
from rollart_hpc.errors import RewardFault
from rollart_hpc.rewards.payload import Played
from rollart_hpc.types import Episode, FinishReason, GenerateRequest, GenerateResult, Score, Span, Ticket, Trajectory
from rollart_hpc.warm_start.tokenizer import END, build_tokenizer
from tests.integration.control_plane.scripted_engine import reply

TICKET = Ticket(trajectory_id="t", group_id="g", task="a", seed=7, admitted_version=2)


def ids(text: str) -> list[int]:
    return build_tokenizer().encode(text, add_special_tokens=False).ids


(END_ID,) = ids(END)
DIGITS = ids("0123456789")


@dataclass
class Judge:
    """Gives the sum of the environment's rewards; keeps what it was shown."""

    fault: RewardFault | None = None
    seen: list[Episode] = field(default_factory=list[Episode])

    async def score(self, episode: Episode, played: Played) -> Score:
        self.seen.append(episode)
        if self.fault:
            raise self.fault
        return Score(reward=sum(turn.reward for turn in episode.turns), success=episode.terminated, metrics={"m": 1.0})


@dataclass
class Table:
    """What a test plays on."""

    playground: Playground
    judge: Judge

    async def play(self, ticket: Ticket = TICKET) -> Trajectory:
        async with asyncio.timeout(30):
            return await EnvManager(self.playground, ticket).play()


SetUp = Callable[..., AbstractAsyncContextManager[Table]]


def in_turn(*answers: tuple[list[int], FinishReason, tuple[Span, ...]]) -> Callable[[GenerateRequest], GenerateResult]:
    """Answers one after the other, the last one again and again."""
    left = list(answers)

    def answer(request: GenerateRequest) -> GenerateResult:
        token_ids, reason, spans = left.pop(0) if len(left) > 1 else left[0]
        return reply(request, token_ids, reason, spans=spans)

    return answer


def go_left(request: GenerateRequest) -> GenerateResult:
    return reply(request, [*ids("left"), END_ID])


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what nothing tells of."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
