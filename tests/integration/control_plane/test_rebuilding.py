"""A trajectory that goes on from its log: where its environment can be rebuilt, and where not."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from rollart_hpc.bus import codec
from rollart_hpc.control_plane.env_manager import EnvManager
from rollart_hpc.rewards.payload import Played
from rollart_hpc.types import Episode, FinishReason, GenerateRequest, GenerateResult, Score, Span, Trajectory, TurnLog
from tests.integration.control_plane.scripted_engine import ScriptedEngine, reply
from tests.integration.control_plane.table import END_ID, TICKET, SetUp, Table, ids, until

Start = Callable[..., Awaitable[ScriptedEngine]]
TURNS = 4
CUT = 3
"""The turn whose response has no end token."""


def by_turn(version: int) -> Callable[[GenerateRequest], GenerateResult]:
    """Answers as one policy does: what it says depends on the prompt alone."""

    def answer(request: GenerateRequest) -> GenerateResult:
        turn = 1 + np.frombuffer(request.token_ids, np.int32).tolist().count(ids("go")[0])
        cut = turn == CUT + 1
        token_ids = [*ids(("left", "up", "right", "down")[turn % 4]), *([] if cut else [END_ID])]
        reason = FinishReason.LENGTH if cut else FinishReason.STOP
        return reply(request, token_ids, reason, spans=(Span(version, 0, len(token_ids)),))

    return answer


async def interrupted(table: Table, engine: ScriptedEngine, *, after: int, log: TurnLog | None = None) -> TurnLog:
    """The log of a trajectory that is cancelled while turn ``after + 1`` is generated; it has travelled."""
    script, asked = engine.script, len(engine.requests)
    goes_on = after - (len(log.turns) if log else 0)
    engine.script = lambda request: script(request) if len(engine.requests) - asked <= goes_on else None
    manager = EnvManager(table.playground, msgspec.structs.replace(TICKET, log=log))
    playing = asyncio.create_task(manager.play())
    await engine.wait_until(lambda: len(engine.requests) - asked > goes_on)
    playing.cancel()
    await asyncio.wait({playing})
    engine.script = script
    made = manager.log()
    assert made is not None
    return codec.decode(codec.encode(made), TurnLog)


async def gone_on(table: Table, log: TurnLog) -> Trajectory:
    return await table.play(msgspec.structs.replace(TICKET, log=log))


def content(played: Trajectory) -> dict[str, Any]:
    """All that must not depend on whether it was interrupted."""
    same = msgspec.structs.replace(played, seconds={}, slowest_turn_s=0.0, num_continued_turns=0, restarted="")
    whole = msgspec.structs.asdict(same)
    return {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in whole.items()}


@pytest.mark.parametrize("environment", ["Light", "Obedient"])
@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_trajectory_goes_on_at_its_last_turn_and_is_as_if_nothing_had_happened(
    set_up: SetUp, start_engine: Start, environment: str, after: int
):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(environment, turns=TURNS) as table:
        whole = await table.play()
        log = await interrupted(table, engine, after=after)
        engine.requests.clear()
        played = await gone_on(table, log)
    assert content(played) == content(whole)
    assert (played.num_continued_turns, played.restarted, played.num_turns) == (after, "", TURNS)
    assert len(engine.requests) == TURNS - after
    assert table.judge.seen[1] == table.judge.seen[0]
    assert played.seconds.keys() == {"reset", "generate", "step", "reward", "rebuild"}
    assert all(played.seconds[phase] >= spent for phase, spent in log.seconds.items())


async def test_tokens_of_both_attempts_keep_their_versions(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS) as table:
        log = await interrupted(table, engine, after=2)
        engine.script = by_turn(4)
        played = await gone_on(table, log)
    assert played.token_versions()[played.loss_mask > 0].tolist() == [3, 3, 3, 3, 4, 4, 4]
    assert played.start_version == log.start_version == 3


async def test_a_trajectory_may_be_interrupted_again_and_again(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS) as table:
        whole = await table.play()
        log = None
        for after in (1, 1, 2, 3):
            log = await interrupted(table, engine, after=after, log=log)
            assert len(log.turns) == after
        engine.requests.clear()
        played = await gone_on(table, log)
    assert content(played) == content(whole)
    assert (played.num_continued_turns, len(engine.requests)) == (3, 1)


async def test_an_action_that_was_not_answered_is_played_and_not_sampled_again(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up("Obedient", turns=TURNS) as table:
        whole = await table.play()
    async with set_up("Obedient", turns=TURNS, fault="hang") as table:
        manager = EnvManager(table.playground, TICKET)
        playing = asyncio.create_task(manager.play())
        await engine.wait_until(lambda: len(engine.requests) == TURNS + 2)
        await until(lambda: (log := manager.log()) is not None and log.action is not None and len(log.turns) == 1)
        playing.cancel()
        await asyncio.wait({playing})
    log = manager.log()
    assert log is not None
    assert (len(log.turns), log.action, log.finish_reason) == (1, "down", FinishReason.STOP)
    assert np.frombuffer(log.token_ids, np.int32).tolist()[-2:] == [*ids("down"), END_ID]
    engine.requests.clear()
    async with set_up("Obedient", turns=TURNS) as table:
        played = await gone_on(table, log)
    assert content(played) == content(whole)
    assert (played.num_continued_turns, len(engine.requests)) == (2, TURNS - 2)


async def test_an_answer_whose_tokens_are_not_there_yet_is_asked_for_again(
    set_up: SetUp, start_engine: Start, monkeypatch: pytest.MonkeyPatch
):
    """Its log never has the words of an observation without the tokens."""
    engine = await start_engine("gen-0", by_turn(3))
    encoding, goes_on = threading.Event(), threading.Event()
    async with set_up(turns=TURNS, size=40_000, max_context=200_000) as table:
        whole = await table.play()
        encode = table.playground.chat.next_observation

        def slowly(text: str) -> bytes:
            encoding.set()
            goes_on.wait(10)
            return encode(text)

        monkeypatch.setattr(table.playground.chat, "next_observation", slowly)
        manager = EnvManager(table.playground, TICKET)
        playing = asyncio.create_task(manager.play())
        await until(encoding.is_set)
        playing.cancel()
        await asyncio.wait({playing})
        goes_on.set()
        log = manager.log()
        assert log is not None
        assert (log.turns, log.observation, log.action) == ((), "go 7", "right")
        engine.requests.clear()
        played = await gone_on(table, log)
    assert content(played) == content(whole)
    assert (played.num_continued_turns, len(engine.requests)) == (1, TURNS - 1)


@pytest.mark.parametrize("limit", [TURNS, 9], ids=["the turn limit", "the environment"])
async def test_an_episode_that_had_ended_goes_straight_to_its_score(set_up: SetUp, start_engine: Start, limit: int):
    engine = await start_engine("gen-0", by_turn(3))
    turns = TURNS if limit > TURNS else 9
    async with set_up(turns=turns, task={"max_turns": limit}) as table:
        whole = await table.play()
        scoring, judge = asyncio.Event(), table.judge.score

        async def hang(episode: Episode, played: Played) -> Score:
            scoring.set()
            await asyncio.Event().wait()
            return await judge(episode, played)

        table.judge.score = hang  # type: ignore[method-assign]
        manager = EnvManager(table.playground, TICKET)
        playing = asyncio.create_task(manager.play())
        await asyncio.wait_for(scoring.wait(), 10)
        playing.cancel()
        await asyncio.wait({playing})
        table.judge.score = judge  # type: ignore[method-assign]
        log = manager.log()
        assert log is not None
        assert (len(log.turns), log.action) == (TURNS, None)
        engine.requests.clear()
        played = await gone_on(table, log)
    assert content(played) == content(whole)
    assert (played.truncated, played.num_continued_turns, engine.requests) == (limit == TURNS, TURNS, [])


async def test_an_observation_that_fills_the_context_ends_it_after_the_interruption_too(
    set_up: SetUp, start_engine: Start
):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS, max_context=24) as table:
        whole = await table.play()
        log = await interrupted(table, engine, after=1)
        played = await gone_on(table, log)
    assert whole.truncated
    assert content(played) == content(whole)


def with_turn(log: TurnLog, number: int, **changes: Any) -> TurnLog:
    turns = list(log.turns)
    turns[number - 1] = msgspec.structs.replace(turns[number - 1], **changes)
    return msgspec.structs.replace(log, turns=tuple(turns))


DIFFERENCES: dict[str, tuple[Callable[[TurnLog], TurnLog], str]] = {
    "first observation": (lambda log: with_turn(log, 1, observation="go 8"), "observation of turn 1 differs"),
    "observation": (lambda log: with_turn(log, 2, observation="go 9"), "observation of turn 2 differs"),
    "last observation": (lambda log: msgspec.structs.replace(log, observation="go"), "observation of turn 3 differs"),
    "reward": (lambda log: with_turn(log, 2, reward=np.nextafter(0.5, 1)), "reward of turn 2 differs"),
    "tokens": (lambda log: msgspec.structs.replace(log, token_ids=log.token_ids[:-4]), "tokens of turn 3 differ"),
}


@pytest.mark.parametrize(("change", "reason"), DIFFERENCES.values(), ids=DIFFERENCES)
async def test_at_the_first_difference_it_starts_again_and_says_why(
    set_up: SetUp, start_engine: Start, change: Callable[[TurnLog], TurnLog], reason: str
):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS) as table:
        whole = await table.play()
        log = change(await interrupted(table, engine, after=2))
        engine.requests.clear()
        played = await gone_on(table, log)
    assert content(played) == content(whole)
    assert (played.restarted, played.num_continued_turns) == (reason, 0)
    assert len(engine.requests) == TURNS


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"turns": 2}, "end after turn 2 differs"),
        ({"turns": 1}, "end after turn 1 differs"),
        ({"turns": TURNS, "task": {"max_turns": 2}}, "end after turn 2 differs"),
    ],
    ids=["one turn early", "two turns early", "a lower turn limit"],
)
async def test_an_episode_that_ends_earlier_than_before_starts_again(
    set_up: SetUp, start_engine: Start, settings: dict[str, Any], reason: str
):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS) as table:
        log = await interrupted(table, engine, after=2)
        acted = with_pending_action(log)
    async with set_up(**settings) as table:
        played = await gone_on(table, acted)
        whole = await table.play()
    assert (played.restarted, played.num_continued_turns) == (reason, 0)
    assert content(played) == content(whole)


def with_pending_action(log: TurnLog) -> TurnLog:
    action = ids("left")
    return msgspec.structs.replace(
        log,
        action="left",
        finish_reason=FinishReason.LENGTH,
        token_ids=log.token_ids + np.asarray(action, np.int32).tobytes(),
        loss_mask=log.loss_mask + b"\x01",
        logprobs=log.logprobs + bytes(4),
        spans=(Span(3, log.spans[0].start, len(log.loss_mask) + 1),),
    )


async def test_a_turn_limit_that_was_raised_since_starts_it_again(set_up: SetUp, start_engine: Start):
    """Its log has no tokens of an observation after its last turn."""
    await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS, task={"max_turns": 2}) as table:
        manager = EnvManager(table.playground, TICKET)
        await manager.play()
        log = manager.log()
        assert log is not None
    async with set_up(turns=TURNS) as table:
        played = await gone_on(table, log)
        whole = await table.play()
    assert played.restarted == "tokens of turn 3 differ"
    assert content(played) == content(whole)


async def test_an_environment_that_promises_nothing_starts_again(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up("Forgetful", turns=TURNS) as table:
        log = await interrupted(table, engine, after=2)
        engine.requests.clear()
        played = await gone_on(table, log)
        whole = await table.play()
    assert content(played) == content(whole)
    assert (played.restarted, played.num_continued_turns) == ("environment is not replayable", 0)


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("fault", ["hang", "raise", "die", "no text"])
async def test_a_fault_while_rebuilding_costs_the_log_and_the_next_one_the_trajectory(
    set_up: SetUp, start_engine: Start, fault: str, where: str
):
    cause = {"hang": f"{where}_timeout", "raise": "raised", "die": "died", "no text": "bad_type"}[fault]
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up("Obedient", turns=TURNS) as table:
        log = await interrupted(table, engine, after=2)
    timeouts = {"reset_timeout_s": 3.0 if where == "reset" else 20.0, "step_timeout_s": 0.5}
    async with set_up("Obedient", turns=TURNS, task=timeouts, fault=fault, where=where) as table:
        played = await gone_on(table, log)
    assert played.restarted == f"environment {cause} while it was rebuilt"
    assert (played.failure, played.num_continued_turns) == (f"environment {cause}", 0)


async def test_a_trajectory_that_starts_again_after_a_fault_is_whole(
    set_up: SetUp, start_engine: Start, monkeypatch: pytest.MonkeyPatch
):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS) as table:
        whole = await table.play()
        log = await interrupted(table, engine, after=2)
        monkeypatch.setattr("tests.integration.control_plane.environments.Light.raises_once", True)
        played = await gone_on(table, log)
    assert content(played) == content(whole)
    assert played.restarted == "environment raised while it was rebuilt"


async def test_what_is_interrupted_before_it_was_rebuilt_keeps_its_log(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up("Obedient", turns=TURNS) as table:
        log = await interrupted(table, engine, after=2)
        manager = EnvManager(table.playground, msgspec.structs.replace(TICKET, log=log))
        assert manager.log() == log
        playing = asyncio.create_task(manager.play())
        await asyncio.sleep(0)
        playing.cancel()
        await asyncio.wait({playing})
    assert manager.log() == log


async def test_what_starts_again_and_is_interrupted_has_a_log_of_its_new_turns_only(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up("Forgetful", turns=TURNS) as table:
        first = await interrupted(table, engine, after=3)
        asked = len(engine.requests)
        engine.script = lambda request: by_turn(4)(request) if len(engine.requests) - asked <= 1 else None
        manager = EnvManager(table.playground, msgspec.structs.replace(TICKET, log=first))
        playing = asyncio.create_task(manager.play())
        await engine.wait_until(lambda: len(engine.requests) - asked > 1)
        playing.cancel()
        await asyncio.wait({playing})
    second = manager.log()
    assert second is not None
    assert (len(second.turns), second.start_version) == (1, 4)
    assert len(second.token_ids) < len(first.token_ids)


async def test_a_trajectory_without_an_action_has_no_log(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", lambda request: None)
    async with set_up() as table:
        manager = EnvManager(table.playground, TICKET)
        playing = asyncio.create_task(manager.play())
        await engine.wait_until(lambda: len(engine.requests) == 1)
        playing.cancel()
        await asyncio.wait({playing})
    assert manager.log() is None


async def test_seeds_go_by_run_trajectory_and_turn_and_not_by_the_attempt(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS, deterministic=True) as table:
        await table.play()
        whole = [request.seed for request in engine.requests]
        log = await interrupted(table, engine, after=2)
        engine.requests.clear()
        await gone_on(table, log)
        continued = [request.seed for request in engine.requests]
        await table.play(msgspec.structs.replace(TICKET, trajectory_id="other"))
    assert continued == whole[2:]
    assert len({*whole, *(request.seed for request in engine.requests)} - {None}) == 2 * TURNS


async def test_without_the_setting_a_turn_has_no_seed(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", by_turn(3))
    async with set_up(turns=TURNS) as table:
        await table.play()
    assert {request.seed for request in engine.requests} == {None}
