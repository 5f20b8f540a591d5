"""One trajectory from its ticket to its score, with a scripted engine on the real bus and real environments."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np
import pytest

from rollart_hpc.bus.membership import MemberView
from rollart_hpc.control_plane.env_manager import EnvManager
from rollart_hpc.errors import RewardFault
from rollart_hpc.rewards.payload import Played
from rollart_hpc.types import Episode, FinishReason, GenerateRequest, GenerateResult, Score, Span, Ticket
from rollart_hpc.warm_start.tokenizer import framed
from tests.integration.control_plane.scripted_engine import ScriptedEngine, reply, silent
from tests.integration.control_plane.table import (
    DIGITS,
    END_ID,
    TICKET,
    Judge,
    SetUp,
    go_left,
    ids,
    in_turn,
)

Start = Callable[..., Awaitable[ScriptedEngine]]
FAULTS = ["hang", "raise", "die", "no text", "unknown letters"]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize("environment", ["Light", "Obedient"])
async def test_every_token_of_a_trajectory_has_its_mask_logprob_and_version(
    set_up: SetUp, start_engine: Start, environment: str
):
    engine = await start_engine(
        "gen-0",
        in_turn(
            ([*ids("left"), END_ID], STOP, (Span(3, 0, 2),)),
            (ids("up4right"), LENGTH, (Span(3, 0, 1), Span(4, 1, 3))),
            ([END_ID], STOP, (Span(4, 0, 1),)),
        ),
    )
    async with set_up(environment) as table:
        played = await table.play()
    parts = [
        (ids(framed("go 7")), 0),
        ([*ids("left"), END_ID], 1),
        (ids(framed("go 1")), 0),
        (ids("up4right"), 1),
        ([END_ID, *ids(framed("go 2"))], 0),
        ([END_ID], 1),
    ]
    assert played.token_ids.tolist() == [token for tokens, _ in parts for token in tokens]
    assert played.loss_mask.tolist() == [mask for tokens, mask in parts for _ in tokens]
    expected = [-number / 8 * mask for tokens, mask in parts for number in range(len(tokens))]
    assert played.logprobs.tolist() == expected
    begins = np.cumsum([0, *(len(tokens) for tokens, _ in parts)]).tolist()
    assert played.spans == (Span(3, begins[1], begins[3] + 1), Span(4, begins[3] + 1, begins[6]))
    sampled = played.token_versions()[played.loss_mask > 0]
    assert sampled.tolist() == [3, 3, 3, 4, 4, 4]
    assert (played.token_versions()[played.loss_mask == 0] == -1).all()
    assert (played.start_version, played.failure, played.truncated, played.success) == (3, "", False, True)
    assert (played.reward, played.num_turns, played.metrics) == (0.25 + 0.5 + 0.75, 3, {"m": 1.0})
    assert (played.trajectory_id, played.group_id, played.task, played.seed) == ("t", "g", "a", 7)
    prompts = [np.frombuffer(request.token_ids, np.int32).tolist() for request in engine.requests]
    assert prompts == [played.token_ids[: begins[end]].tolist() for end in (1, 3, 5)]
    assert played.num_prompt_tokens == sum(map(len, prompts))
    assert played.tokens_by_hardware == {"H20": played.loss_mask.sum()}


async def test_tokens_are_counted_by_the_class_of_the_worker_that_sampled_each(
    set_up: SetUp, start_engine: Start, view: MemberView
):
    def then_it_ends(request: GenerateRequest) -> None:
        ending.append(asyncio.create_task(first.expel(view)))

    ending: list[asyncio.Task[None]] = []
    begin = in_turn(([*ids("left"), END_ID], STOP, ()))
    first = await start_engine("gen-0", lambda request: then_it_ends(request) if first.requests[1:] else begin(request))
    async with set_up(turns=3) as table:
        await start_engine("gen-1", in_turn(([*ids("up"), END_ID], STOP, ())), hardware="H800")
        played = await table.play()
        await ending[0]
    assert played.tokens_by_hardware == {"H20": 2, "H800": 4}


async def test_the_engine_is_asked_what_the_config_says(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", go_left)
    async with set_up(task={"max_new_tokens": 5}, turns=1) as table:
        await table.play()
    (request,) = engine.requests
    assert (request.max_tokens, request.temperature, request.top_p, request.tag) == (5, 1.0, 1.0, "lake")
    assert request.stop_token_ids == (END_ID,)


async def test_the_reward_is_shown_the_episode_in_words(set_up: SetUp, start_engine: Start):
    await start_engine("gen-0", in_turn(([*ids("left"), END_ID], STOP, ()), (ids("up4"), LENGTH, ())))
    async with set_up(turns=2) as table:
        await table.play()
    (episode,) = table.judge.seen
    assert [(turn.observation, turn.action, turn.reward, turn.finish_reason) for turn in episode.turns] == [
        ("go 7", "left", 0.25, STOP),
        ("go 1", "up4", 0.5, LENGTH),
    ]
    assert (episode.final_observation, episode.terminated, episode.truncated) == ("go 2", True, False)
    assert episode.info == {"seed": 7, "last": 2, "actions": ["left", "up4"]}


async def test_all_turns_of_a_trajectory_go_to_one_worker(set_up: SetUp, start_engine: Start):
    engines = [await start_engine(f"gen-{number}", go_left) for number in range(3)]
    async with set_up(turns=5) as table:
        await asyncio.gather(*(table.play(msgspec.structs.replace(TICKET, seed=seed)) for seed in range(10)))
    prefix = len(ids(framed("go 7")))
    for seed in range(10):
        begin = np.asarray(ids(framed(f"go {seed}")), np.int32).tobytes()
        turns = [sum(one.token_ids[: 4 * prefix] == begin for one in engine.requests) for engine in engines]
        assert sorted(turns) == [0, 0, 5]
    assert all(engine.requests for engine in engines)


async def test_a_trajectory_goes_on_elsewhere_when_its_worker_ends(
    set_up: SetUp, start_engine: Start, view: MemberView
):
    dying = await start_engine("gen-0", go_left)
    async with set_up(turns=3) as table:
        dying.script = lambda request: go_left(request) if len(dying.requests) < 2 else None
        playing = asyncio.create_task(table.play())
        await dying.wait_until(lambda: len(dying.requests) == 2)
        other = await start_engine("gen-1", go_left)
        await dying.expel(view)
        played = await playing
    assert (played.failure, played.num_turns, len(other.requests)) == ("", 3, 2)
    assert other.requests[0].token_ids == dying.requests[1].token_ids


@pytest.mark.parametrize(
    ("token_ids", "reason"), [([END_ID], STOP), ([], LENGTH)], ids=["the stop token alone", "no token"]
)
async def test_an_empty_response_is_an_action_like_any_other(
    set_up: SetUp, start_engine: Start, token_ids: list[int], reason: FinishReason
):
    await start_engine("gen-0", in_turn((token_ids, reason, ()), ([*ids("left"), END_ID], STOP, (Span(5, 0, 2),))))
    async with set_up(turns=2) as table:
        played = await table.play()
    assert [turn.action for turn in table.judge.seen[0].turns] == ["", "left"]
    assert played.token_ids.tolist() == [*ids(framed("go 7")), END_ID, *ids(framed("go 1")), *ids("left"), END_ID]
    assert played.loss_mask.sum() == len(token_ids) + 2
    assert (played.failure, played.start_version) == ("", 5)


async def test_the_turn_limit_truncates_after_the_last_response(set_up: SetUp, start_engine: Start):
    await start_engine("gen-0", in_turn((ids("up4"), LENGTH, (Span(2, 0, 2),))))
    async with set_up(task={"max_turns": 2}) as table:
        played = await table.play()
    assert (played.truncated, played.success, played.failure, played.num_turns) == (True, False, "", 2)
    assert played.token_ids[-2:].tolist() == ids("up4")
    assert table.judge.seen[0].truncated
    assert not table.judge.seen[0].terminated


async def test_an_environment_that_ends_at_the_turn_limit_is_not_truncated(set_up: SetUp, start_engine: Start):
    await start_engine("gen-0", go_left)
    async with set_up(task={"max_turns": 2}, turns=2) as table:
        played = await table.play()
    assert (played.truncated, played.success) == (False, True)


@pytest.mark.parametrize("size", [5, 200_000], ids=["a little", "far"])
async def test_an_observation_beyond_the_context_ends_the_trajectory_truncated_within_it(
    set_up: SetUp, start_engine: Start, size: int
):
    await start_engine("gen-0", in_turn(([*ids("left"), END_ID], STOP, (Span(2, 0, 2),))))
    async with set_up(max_context=16, size=size) as table:
        played = await table.play()
    assert (played.failure, played.truncated, played.num_turns) == ("", True, 1)
    assert played.token_ids.tolist() == [*ids(framed("go 7")), *ids("left"), END_ID]
    assert len(played.loss_mask) == len(played.logprobs) == len(played.token_ids)
    assert played.reward == 0.25


async def test_a_context_that_the_engine_finds_full_ends_the_trajectory_truncated(set_up: SetUp, start_engine: Start):
    await start_engine(
        "gen-0",
        in_turn(([*ids("left"), END_ID], STOP, (Span(2, 0, 2),)), ([], FinishReason.CONTEXT, ())),
    )
    async with set_up() as table:
        played = await table.play()
    assert (played.failure, played.truncated, played.num_turns) == ("", True, 1)
    assert played.token_ids.tolist() == [*ids(framed("go 7")), *ids("left"), END_ID]
    assert played.num_prompt_tokens == len(ids(framed("go 7")))


async def test_a_first_observation_beyond_the_context_leaves_nothing_to_train_on(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", go_left)
    async with set_up(max_context=9, task={"max_new_tokens": 8}) as table:
        ticket = Ticket(trajectory_id="t", group_id="g", task="a", seed=7000000, admitted_version=2)
        played = await table.play(ticket)
    assert (played.failure, played.truncated, played.num_turns, played.start_version) == ("", True, 0, 2)
    assert played.loss_mask.sum() == 0
    assert len(played.token_ids) <= 9
    assert engine.requests == []


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_an_environment_does_wrong_fails_its_trajectory_and_no_other(
    set_up: SetUp, start_engine: Start, fault: str, where: str
):
    await start_engine("gen-0", go_left)
    timeouts = {"reset_timeout_s": 4.0 if (fault, where) == ("hang", "reset") else 20.0, "step_timeout_s": 0.3}
    async with set_up("Obedient", task=timeouts, fault=fault, where=where) as table:
        failed = await table.play()
    cause = {
        "hang": f"{where}_timeout",
        "raise": "raised",
        "die": "died",
        "no text": "bad_type",
        "unknown letters": "bad_text",
    }[fault]
    assert failed.failure == f"environment {cause}"
    assert failed.failure_detail.startswith(f"{cause}: ")
    assert "\n" not in failed.failure_detail
    assert (failed.retryable, failed.reward, failed.success) == (True, 0.0, False)
    assert [len(array) for array in (failed.token_ids, failed.loss_mask, failed.logprobs)] == [0, 0, 0]
    assert (failed.spans, failed.start_version) == ((), 2)
    assert (failed.trajectory_id, failed.group_id, failed.task, failed.seed) == ("t", "g", "a", 7)
    assert table.judge.seen == []


@pytest.mark.parametrize("fault", ["raise", "no text", "unknown letters"])
async def test_a_light_environment_s_faults_cost_its_trajectory_only(set_up: SetUp, start_engine: Start, fault: str):
    await start_engine("gen-0", go_left)
    async with set_up("Light", fault=fault) as table:
        other = EnvManager(table.playground, TICKET).play()
        failed, also = await asyncio.gather(table.play(), other)
    assert failed.failure.startswith("environment ")
    assert also.failure == failed.failure


@pytest.mark.parametrize("cause", ["raised", "timeout", "not_a_number"])
async def test_a_reward_that_cannot_be_had_is_a_failure_and_never_zero(set_up: SetUp, start_engine: Start, cause: str):
    await start_engine("gen-0", go_left)
    async with set_up(judge=Judge(RewardFault(cause, "no idea"))) as table:
        failed = await table.play()
    assert failed.failure == f"reward {cause}"
    assert "no idea" in failed.failure_detail
    assert len(failed.token_ids) == 0


async def test_what_nobody_has_thought_of_costs_one_trajectory_and_not_its_worker(
    set_up: SetUp, start_engine: Start, monkeypatch: pytest.MonkeyPatch
):
    await start_engine("gen-0", go_left)

    async def broken(self: Judge, episode: Episode, played: Played) -> Score:
        raise OverflowError("too long")

    monkeypatch.setattr(Judge, "score", broken)
    async with set_up() as table:
        trajectory = await table.play()
    assert (trajectory.failure, trajectory.retryable) == ("unexpected", True)
    assert "OverflowError: too long" in trajectory.failure_detail


async def test_a_trajectory_that_takes_too_long_fails_and_is_aborted_where_it_generates(
    set_up: SetUp, start_engine: Start
):
    engine = await start_engine("gen-0", silent)
    async with set_up(rollout={"trajectory_timeout_s": 0.3}, task={"turn_timeout_s": 0.3}) as table:
        failed = await table.play()
        await engine.wait_until(lambda: engine.aborts == [engine.requests[0].request_id])
    assert (failed.failure, failed.retryable) == ("trajectory_timeout", True)
    where = "it waited for generate after 0 actions"
    assert failed.failure_detail == f"no score within 0.3 s (rollout.trajectory_timeout_s): {where}"


async def test_a_trajectory_that_takes_too_long_in_its_environment_frees_the_process(
    set_up: SetUp, start_engine: Start
):
    await start_engine("gen-0", go_left)
    task = {"step_timeout_s": 60.0, "turn_timeout_s": 1.5}
    async with set_up("Obedient", rollout={"trajectory_timeout_s": 1.5}, task=task, fault="hang") as table:
        failed = await asyncio.gather(*(table.play() for _ in range(2)))
        host = table.playground.host
        assert {one.failure for one in failed} == {"trajectory_timeout"}
        async with asyncio.timeout(10), host.open("a") as session:
            assert (await session.reset(1)).observation == "go 1"


@pytest.mark.parametrize("measured_s", [None, 0.3], ids=["configured", "measured"])
async def test_a_turn_that_takes_too_long_fails_its_trajectory(
    set_up: SetUp, start_engine: Start, measured_s: float | None
):
    await start_engine("gen-0", go_left)
    task = {"step_timeout_s": 60.0, "turn_timeout_s": 60.0 if measured_s else 0.3}
    async with set_up("Obedient", task=task, fault="hang") as table:
        failed = await table.play(msgspec.structs.replace(TICKET, turn_timeout_s=measured_s))
    assert (failed.failure, failed.retryable) == ("turn_timeout", True)
    source = "as measured" if measured_s else "tasks.a.turn_timeout_s"
    where = "it waited for step after 1 actions"
    assert failed.failure_detail == f"a turn was not over within 0.3 s ({source}): {where}"


async def test_a_turn_that_the_engine_refuses_fails_the_trajectory_with_its_words(set_up: SetUp, start_engine: Start):
    await start_engine("gen-0", lambda request: reply(request, [], FinishReason.ABORT, error="no such token: 99"))
    async with set_up() as table:
        failed = await table.play()
    assert (failed.failure, failed.failure_detail) == ("generation", "gen-0: no such token: 99")


async def test_no_generation_worker_at_all_fails_the_trajectory_in_time(set_up: SetUp):
    async with set_up(rollout={"generate_timeout_s": 0.2}) as table:
        failed = await table.play()
    assert failed.failure_detail == "waited 0.2 s for a live actor_gen worker from the members, in vain"


async def test_a_trajectory_that_is_cancelled_leaves_nothing_running(set_up: SetUp, start_engine: Start):
    engine = await start_engine("gen-0", silent)
    async with set_up("Obedient") as table:
        playing = asyncio.create_task(table.play())
        await engine.wait_until(lambda: len(engine.requests) == 1)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await engine.wait_until(lambda: engine.aborts == [engine.requests[0].request_id])
        engine.script = go_left
        assert (await table.play()).failure == ""


async def test_many_trajectories_do_not_mix(set_up: SetUp, start_engine: Start):
    """The policy writes the last digit that it was shown; each must answer its own seed."""
    await start_engine("gen-0", lambda request: reply(request, [_digit(request), END_ID]))
    await start_engine("gen-1", lambda request: reply(request, [_digit(request), END_ID]))
    async with set_up(turns=4) as table:
        tickets = [
            Ticket(trajectory_id=f"t{n}", group_id="g", task="a", seed=n % 10, admitted_version=0) for n in range(100)
        ]
        played = await asyncio.gather(*(table.play(ticket) for ticket in tickets))
    assert [one.trajectory_id for one in played] == [ticket.trajectory_id for ticket in tickets]
    for episode in table.judge.seen:
        assert [turn.action for turn in episode.turns] == [str(episode.seed), "1", "2", "3"]
    assert {episode.seed for episode in table.judge.seen} == set(range(10))


def _digit(request: GenerateRequest) -> int:
    shown = [token for token in np.frombuffer(request.token_ids, np.int32).tolist() if token in DIGITS]
    return shown[-1]


async def test_in_a_batched_mode_the_others_of_its_worker_are_waited_for_on_nobody_s_time(
    set_up: SetUp, start_engine: Start
):
    slow_ids = np.asarray(ids(framed("go 8")), np.int32).tobytes()
    turns: list[str] = []

    def answer(request: GenerateRequest) -> GenerateResult | None:
        turns.append("slow" if request.token_ids.startswith(slow_ids) else "fast")
        return None if turns[-1] == "slow" and turns.count("slow") == 2 else go_left(request)

    class LateJudge(Judge):
        async def score(self, episode: Episode, played: Played) -> Score:
            assert slow.done()
            return await super().score(episode, played)

    await start_engine("gen-0", answer)
    async with set_up("Light", rollout={"interaction": "batched"}, judge=LateJudge(), turns=2) as table:
        ticket = msgspec.structs.replace(TICKET, trajectory_id="fast", timeout_s=1.5)
        fast = asyncio.create_task(table.play(ticket))
        ticket = msgspec.structs.replace(TICKET, trajectory_id="slow", seed=8, turn_timeout_s=2.0)
        slow = asyncio.create_task(table.play(ticket))
        played, failed = await asyncio.gather(fast, slow)
    assert (played.failure, failed.failure) == ("", "turn_timeout")
    assert [sorted(turns[:2]), sorted(turns[2:])] == [["fast", "slow"]] * 2
    assert played.seconds["batch_wait"] > 0
