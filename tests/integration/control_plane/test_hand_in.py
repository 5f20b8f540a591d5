"""An environment worker that is told to hand in, whatever its trajectories wait for, and another that goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from nats.js.api import RetentionPolicy, StreamConfig

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane import environment_worker
from rollart_hpc.control_plane.environment_worker import EnvironmentCls
from rollart_hpc.data_plane.reward_worker import RewardRequest, RewardResult
from rollart_hpc.data_plane.worker import Attempt, WorkerContext
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Role, Score, Ticket, Trajectory, TurnLog
from rollart_hpc.warm_start.tokenizer import save_tokenizer
from tests.builders import run_config
from tests.integration.control_plane.scripted_engine import ScriptedEngine, reply
from tests.integration.control_plane.table import END_ID, go_left, ids, until
from tests.live_processes import live_children

StartEngine = Callable[..., Awaitable[ScriptedEngine]]
StartReward = Callable[..., Awaitable[list[RewardRequest]]]
WAY = ["down", "down", "right", "right", "down", "right"]
LAKE = "rollart_hpc.envs.frozen_lake:FrozenLake"
OURS = "tests.integration.control_plane.environments:"
AT_MOST_S = 20


@dataclass
class Site:
    """Environment workers on one bus, and what they put on the stream."""

    start: Callable[..., Awaitable[EnvironmentCls]]
    bus: Bus

    async def published(self) -> list[Trajectory | TurnLog]:
        state = (await self.bus.js.stream_info(subjects.TRAJECTORY_STREAM)).state
        found: list[Trajectory | TurnLog] = []
        for sequence in range(1, state.last_seq + 1):
            message = await self.bus.js.get_msg(subjects.TRAJECTORY_STREAM, sequence)
            is_log = str(message.subject).startswith("log.")
            found.append(codec.decode(message.data or b"", TurnLog if is_log else Trajectory))
        return found

    async def finished(self, number: int = 1) -> list[Trajectory]:
        async with asyncio.timeout(AT_MOST_S):
            while True:
                found = [one for one in await self.published() if isinstance(one, Trajectory)]
                if len(found) >= number:
                    return found
                await asyncio.sleep(0.02)

    async def logs(self) -> list[TurnLog]:
        return [one for one in await self.published() if isinstance(one, TurnLog)]


@pytest.fixture
async def site(server: NatsServer, bus: Bus, view: MemberView, tmp_path: Path, quick: None) -> AsyncIterator[Site]:
    """``worker = await site.start("environment-0", LAKE, max_turns=6, turns=2)``."""
    save_tokenizer(tmp_path, max_length=64)
    await create_stream(bus)
    running: list[tuple[EnvironmentCls, asyncio.Task[None]]] = []

    async def start(member_id: str = "environment-0", environment: str = LAKE, *, max_turns: int = 9, **args: Any):
        config = config_of(tmp_path, environment, max_turns, args)
        attempt = Attempt(
            run_directory=str(tmp_path),
            number=1,
            bus=server.endpoint,
            store=None,
            config=config.model_dump(mode="json"),
        )
        member = Member(member_id=member_id, role=Role.ENVIRONMENT, hardware="cpu", node="n", pid=1)
        worker = EnvironmentCls(WorkerContext(attempt=attempt, config=config, bus=bus, view=view, member=member))
        await worker.setup()
        running.append((worker, asyncio.create_task(worker.run())))
        await asyncio.sleep(0)
        return worker

    yield Site(start, bus)
    for worker, task in running:
        task.cancel()
        await asyncio.wait({task})
        await worker.close()


async def create_stream(bus: Bus) -> None:
    await bus.js.add_stream(
        StreamConfig(
            name=subjects.TRAJECTORY_STREAM,
            subjects=list(subjects.TRAJECTORY_SUBJECTS),
            retention=RetentionPolicy.WORK_QUEUE,
        )
    )


async def new_stream(bus: Bus) -> None:
    """As every attempt has one: what knows an id does not take it again."""
    await bus.js.delete_stream(subjects.TRAJECTORY_STREAM)
    await create_stream(bus)


def config_of(model: Path, environment: str, max_turns: int, args: dict[str, Any]) -> RunConfig:
    task = {
        "environment": environment,
        "environment_args": args,
        "max_turns": max_turns,
        "max_new_tokens": 8,
        "step_timeout_s": 60.0,
    }
    config = run_config(tasks={"a": task}, trajectories_per_worker=64)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": model})})


def ticket(number: int = 0, log: TurnLog | None = None) -> Ticket:
    return Ticket(trajectory_id=f"t{number}", group_id="g", task="a", seed=7, admitted_version=0, log=log)


def walk(request: GenerateRequest) -> GenerateResult:
    """The next step of the shortest way, by the number of grids that were seen."""
    turn = np.frombuffer(request.token_ids, np.int32).tolist().count(ids("assistant")[0]) - 1
    return reply(request, [*ids(WAY[turn]), END_ID])


def walk_until(turn: int) -> Callable[[GenerateRequest], GenerateResult | None]:
    grids = turn + 1
    return lambda request: (
        walk(request)
        if np.frombuffer(request.token_ids, np.int32).tolist().count(ids("assistant")[0]) <= grids
        else None
    )


def judged(request: RewardRequest) -> RewardResult:
    return RewardResult(request.request_id, Score(reward=1.0, success=bool(request.episode.info.get("success"))))


async def handed_in(worker: EnvironmentCls) -> list[str]:
    """Through the call, as the controller makes it."""
    async with asyncio.timeout(AT_MOST_S):
        return codec.decode(await worker.handle_call("hand_in", codec.encode(())), list[str])


def children() -> list[psutil.Process]:
    return [child for child in live_children(recursive=True) if "environment_child" in " ".join(child.cmdline())]


async def test_a_lake_that_waits_for_generation_goes_on_at_its_last_turn(
    site: Site, start_engine: StartEngine, start_reward: StartReward
):
    engine, episodes = await start_engine("gen-0", walk_until(3)), await start_reward("reward-0", judged)
    worker = await site.start()
    await worker.play([ticket()])
    await engine.wait_until(lambda: len(engine.requests) == 5)
    assert await handed_in(worker) == ["t0"]
    await engine.wait_until(lambda: engine.aborts == [engine.requests[4].request_id])
    (log,) = await site.logs()
    assert [turn.action for turn in log.turns] == WAY[:4]
    assert (log.trajectory_id, log.group_id, log.task, log.seed, log.action) == ("t0", "g", "a", 7, None)
    assert log.token_ids == engine.requests[4].token_ids
    engine.requests.clear()
    engine.script = walk
    another = await site.start("environment-1")
    await another.play([ticket(log=log)])
    (played,) = await site.finished()
    assert (played.trajectory_id, played.num_turns, played.num_continued_turns, played.restarted) == ("t0", 6, 4, "")
    assert (played.success, played.worker) == (True, "environment-1")
    assert played.token_ids.tobytes().startswith(log.token_ids)
    assert len(engine.requests) == 2
    assert [turn.action for turn in episodes[0].episode.turns] == WAY


async def test_a_step_that_hangs_is_killed_and_its_action_handed_in(site: Site, start_engine: StartEngine):
    engine = await start_engine("gen-0", go_left)
    worker = await site.start(environment=OURS + "Obedient", fault="hang")
    await worker.play([ticket()])
    await until(lambda: bool(logs := [one.manager.log() for one in worker._playing.values()]) and is_acting(logs[0], 2))
    (child,) = children()
    assert await handed_in(worker) == ["t0"]
    (log,) = await site.logs()
    assert is_acting(log, 2)
    assert log.finish_reason is FinishReason.STOP
    assert len(engine.requests) == 2
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [child], timeout=5)
    assert gone


def is_acting(log: TurnLog | None, turn: int) -> bool:
    return log is not None and log.action == "left" and len(log.turns) == turn - 1


async def test_an_episode_that_waits_for_its_reward_is_scored_and_not_played_again(
    site: Site, start_engine: StartEngine, start_reward: StartReward
):
    engine = await start_engine("gen-0", walk)
    silent = await start_reward("reward-0", lambda request: None)
    worker = await site.start()
    await worker.play([ticket()])
    await until(lambda: len(silent) == 1)
    assert await handed_in(worker) == ["t0"]
    (log,) = await site.logs()
    assert (len(log.turns), log.action) == (6, None)
    engine.requests.clear()
    await start_reward("reward-1", judged)
    another = await site.start("environment-1")
    another._rewards._requests.pick = picks("reward-1")  # type: ignore[method-assign]
    await another.play([ticket(log=log)])
    (played,) = await site.finished()
    assert (played.num_turns, played.num_continued_turns, played.success, engine.requests) == (6, 6, True, [])


def picks(worker: str) -> Callable[..., Awaitable[str]]:
    async def pick(choose: object) -> str:
        return worker

    return pick


async def test_a_trajectory_is_finished_or_handed_in_and_never_both(
    site: Site, start_engine: StartEngine, start_reward: StartReward
):
    """Many short ones, at every point of their way; the last turns are never answered."""
    engine = await start_engine("gen-0", lambda request: walk(request) if len(engine.requests) <= 250 else None)
    await start_reward("reward-0", judged)
    worker = await site.start()
    every = [ticket(number) for number in range(60)]
    for number in range(0, 60, 4):
        await worker.play(every[number : number + 4])
        await engine.wait_until(lambda asked=number * 4: len(engine.requests) >= asked)
    ids_of_logs = await handed_in(worker)
    published = await site.published()
    assert len({one.trajectory_id for one in published}) == len(published)
    assert [one.trajectory_id for one in published if isinstance(one, TurnLog)] == ids_of_logs
    assert {type(one) for one in published} == {Trajectory, TurnLog}
    assert all(one.failure == "" for one in published if isinstance(one, Trajectory))


async def test_a_trajectory_on_its_way_to_the_stream_is_waited_for_and_not_handed_in(
    site: Site, start_engine: StartEngine, start_reward: StartReward, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment_worker, "_PUBLISH_AGAIN_AFTER_S", 0.05)
    await start_engine("gen-0", walk)
    asked = await start_reward("reward-0", judged)
    await site.bus.js.delete_stream(subjects.TRAJECTORY_STREAM)
    worker = await site.start()
    await worker.play([ticket()])
    await until(lambda: bool(asked) and worker._playing["t0"].has_finished)
    handing_in = asyncio.create_task(handed_in(worker))
    await asyncio.sleep(0)
    await create_stream(site.bus)
    assert await handing_in == []
    (played,) = await site.published()
    assert isinstance(played, Trajectory)


async def test_what_does_not_get_onto_the_stream_in_time_holds_no_other_up(
    site: Site, start_engine: StartEngine, start_reward: StartReward, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment_worker, "_PUBLISH_AGAIN_AFTER_S", 0.05)
    monkeypatch.setattr(environment_worker, "_PUBLISH_TRIES", 10_000)
    monkeypatch.setattr(environment_worker, "_INTERRUPT_DEADLINE_S", 0.3)
    await start_engine("gen-0", walk)
    asked = await start_reward("reward-0", judged)
    await site.bus.js.delete_stream(subjects.TRAJECTORY_STREAM)
    worker = await site.start()
    await worker.play([ticket()])
    await until(lambda: bool(asked) and worker._playing["t0"].has_finished)
    assert await handed_in(worker) == []
    assert not worker._playing["t0"].task.done()


async def test_a_log_is_sent_until_the_stream_has_it(
    site: Site, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(environment_worker, "_PUBLISH_AGAIN_AFTER_S", 0.05)
    engine = await start_engine("gen-0", walk_until(1))
    await site.bus.js.delete_stream(subjects.TRAJECTORY_STREAM)
    worker = await site.start()
    await worker.play([ticket()])
    await engine.wait_until(lambda: len(engine.requests) == 3)
    handing_in = asyncio.create_task(handed_in(worker))
    await until(lambda: "not yet on the stream" in caplog.text)
    await create_stream(site.bus)
    assert await handing_in == ["t0"]
    assert len(await site.logs()) == 1


async def test_a_stream_that_takes_nothing_costs_the_logs_and_not_the_worker(
    site: Site, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment_worker, "_PUBLISH_AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(environment_worker, "_PUBLISH_TRIES", 2)
    engine = await start_engine("gen-0", walk_until(1))
    await site.bus.js.delete_stream(subjects.TRAJECTORY_STREAM)
    worker = await site.start()
    await worker.play([ticket()])
    await engine.wait_until(lambda: len(engine.requests) == 3)
    assert await handed_in(worker) == []
    assert await worker.play([]) == 0


async def test_handing_in_again_gives_the_same_and_publishes_nothing(site: Site, start_engine: StartEngine):
    engine = await start_engine("gen-0", walk_until(1))
    worker = await site.start()
    await worker.play([ticket(0), ticket(1)])
    await engine.wait_until(lambda: len(engine.requests) == 6)
    first, second = await asyncio.gather(handed_in(worker), handed_in(worker))
    assert first == second == await handed_in(worker) == ["t0", "t1"]
    assert len(await site.published()) == 2


async def test_tickets_that_come_while_it_hands_in_or_later_are_left_alone(site: Site, start_engine: StartEngine):
    engine = await start_engine("gen-0", walk_until(1))
    worker = await site.start()
    await worker.play([ticket(0)])
    await engine.wait_until(lambda: len(engine.requests) == 3)
    handing_in = asyncio.create_task(handed_in(worker))
    await asyncio.sleep(0)
    await worker.play([ticket(1)])
    assert await handing_in == ["t0"]
    assert await worker.play([ticket(2)]) == 0
    await site.bus.nc.flush()
    assert (len(engine.requests), len(await site.published())) == (3, 1)


async def test_a_ticket_that_has_just_come_is_handed_in_as_it_came(site: Site, start_engine: StartEngine):
    engine = await start_engine("gen-0", walk_until(2))
    worker = await site.start()
    await worker.play([ticket(0)])
    await engine.wait_until(lambda: len(engine.requests) == 4)
    await handed_in(worker)
    (log,) = await site.logs()
    await new_stream(site.bus)
    another = await site.start("environment-1")
    await another.play([ticket(0, log), ticket(1)])
    assert await another.hand_in() == ["t0"]
    (again,) = await site.logs()
    assert without_times(again) == without_times(log)


def without_times(log: TurnLog) -> TurnLog:
    return msgspec.structs.replace(log, seconds={})


async def test_a_trajectory_that_was_continued_is_handed_in_whole(site: Site, start_engine: StartEngine):
    engine = await start_engine("gen-0", walk_until(1))
    log, known = None, 0
    for attempt, turns in enumerate((2, 4, 5)):
        await new_stream(site.bus)
        engine.script, asked = walk_until(turns - 1), len(engine.requests) + turns - known
        worker = await site.start(f"environment-{attempt}")
        await worker.play([ticket(log=log)])
        await engine.wait_until(lambda asked=asked: len(engine.requests) == asked + 1)
        assert await handed_in(worker) == ["t0"]
        (log,) = await site.logs()
        assert [turn.action for turn in log.turns] == WAY[:turns]
        known = turns


async def test_a_log_that_the_bus_cannot_carry_is_left_out_with_a_warning(
    site: Site, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    engine = await start_engine("gen-0", walk_until(2))
    worker = await site.start()
    await worker.play([ticket(0)])
    await engine.wait_until(lambda: len(engine.requests) == 4)
    engine.script = walk_until(0)
    await worker.play([ticket(1)])
    await engine.wait_until(lambda: len(engine.requests) == 6)
    monkeypatch.setattr(environment_worker, "MAX_PAYLOAD_BYTES", 1000)
    with caplog.at_level(logging.WARNING):
        assert await handed_in(worker) == ["t1"]
    assert "trajectory t0 cannot be handed in and will start again" in caplog.text
    assert [log.trajectory_id for log in await site.logs()] == ["t1"]


async def test_what_has_no_action_yet_or_was_aborted_is_not_handed_in(site: Site, start_engine: StartEngine):
    engine = await start_engine("gen-0", walk_until(1))
    worker = await site.start()
    await worker.play([ticket(0)])
    await engine.wait_until(lambda: len(engine.requests) == 3)
    engine.script = lambda request: None
    await worker.play([ticket(1)])
    await engine.wait_until(lambda: len(engine.requests) == 4)
    await worker.abort(["t0"])
    assert await handed_in(worker) == []
    assert await site.published() == []


async def test_an_idle_worker_hands_in_nothing_and_closes_its_environments(site: Site):
    worker = await site.start(environment=OURS + "Obedient")
    (child,) = children()
    assert await handed_in(worker) == []
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [child], timeout=5)
    assert gone


async def test_a_worker_that_does_not_run_yet_takes_no_ticket_any_more(site: Site):
    running = await site.start()
    worker = EnvironmentCls(running.context)
    assert await worker.hand_in() == []
    assert await worker.play([ticket()]) == 0


async def test_a_worker_that_leaves_hands_in_and_waits_until_the_stream_is_rid_of_all_that_it_put_there(
    site: Site, start_engine: StartEngine, start_reward: StartReward, monkeypatch: pytest.MonkeyPatch
):
    engine = await start_engine("gen-0", walk)
    await start_reward("reward-0", judged)
    worker, another = await site.start(), await site.start("environment-1")
    await worker.play([ticket(0)])
    await another.play([ticket(1)])
    await site.finished(2)
    engine.script = lambda request: walk(request) if len(engine.requests) < 14 else None
    await worker.play([ticket(2)])
    await engine.wait_until(lambda: len(engine.requests) == 14)
    looks: list[bool] = []
    look = worker._is_on_the_stream

    async def seen() -> bool:
        looks.append(await look())
        return looks[-1]

    monkeypatch.setattr(worker, "_is_on_the_stream", seen)
    leaving = asyncio.create_task(worker.hand_over())
    await until(lambda: len(looks) >= 1)
    place = {one.trajectory_id: number for number, one in enumerate(await site.published(), 1)}
    assert [log.trajectory_id for log in await site.logs()] == ["t2"]
    for taken in ("t2", "t0"):
        await until(lambda: len(looks) >= 2)
        assert all(looks)
        await site.bus.js.delete_msg(subjects.TRAJECTORY_STREAM, place[taken])
        looks.clear()
    await asyncio.wait_for(leaving, AT_MOST_S)
    assert looks[-1] is False


async def test_a_worker_that_leaves_waits_for_a_stream_that_does_not_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    worker = await site.start()
    await site.bus.js.delete_stream(subjects.TRAJECTORY_STREAM)
    leaving = asyncio.create_task(worker.hand_over())
    await until(lambda: "the stream does not say what it holds" in caplog.text)
    await create_stream(site.bus)
    await asyncio.wait_for(leaving, AT_MOST_S)


async def test_two_workers_that_leave_one_after_the_other_both_hand_in_what_they_played_of_a_trajectory(
    site: Site, start_engine: StartEngine
):
    engine = await start_engine("gen-0", walk_until(1))
    first, second = await site.start(), await site.start("environment-1")
    await first.play([ticket()])
    await engine.wait_until(lambda: len(engine.requests) == 3)
    await first.hand_in()
    (log,) = await site.logs()
    engine.script = walk_until(3)
    await second.play([ticket(log=log)])
    await engine.wait_until(lambda: len(engine.requests) == 6)
    await second.hand_in()
    assert [len(one.turns) for one in await site.logs()] == [2, 4]


async def test_many_trajectories_are_handed_in_together(site: Site, start_engine: StartEngine):
    engine = await start_engine("gen-0", walk_until(3))
    worker = await site.start()
    await worker.play([ticket(number) for number in range(64)])
    await engine.wait_until(lambda: len(engine.requests) == 64 * 5)
    assert sorted(await handed_in(worker)) == sorted(f"t{number}" for number in range(64))
    logs = await site.logs()
    assert {len(log.turns) for log in logs} == {4}
    assert len({codec.encode(msgspec.structs.replace(without_times(log), trajectory_id="")) for log in logs}) == 1
