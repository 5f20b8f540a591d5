"""Tickets out, trajectories in: the real scheduler, journal, stream and bus; the workers play what a test says."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.calls import call
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView, expel
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane import rollout_service
from rollart_hpc.control_plane import salvage as salvage_module
from rollart_hpc.control_plane.checkpoint import ControllerState
from rollart_hpc.control_plane.group import Group
from rollart_hpc.control_plane.journal import (
    BatchFormed,
    Dispatched,
    Ended,
    Finished,
    HandedIn,
    Journal,
    Record,
    Sent,
    read_journal,
)
from rollart_hpc.control_plane.ledger import Ledger
from rollart_hpc.control_plane.recovery import Recovery, recover
from rollart_hpc.control_plane.rollout_scheduler import WORKER_LEFT, WORKER_LOST, RolloutScheduler
from rollart_hpc.control_plane.rollout_service import RolloutService, open_stream
from rollart_hpc.control_plane.salvage import salvage
from rollart_hpc.data_plane.declarations import register
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.errors import WaitTimeout
from rollart_hpc.types import Outcome, Role, Ticket, Trajectory, TurnLog
from tests.builders import IDENTITY, run_config, trajectory, turn_log

Start = Callable[..., asyncio.Task[None]]


class Player(Worker):
    """Publishes what ``script`` makes of each ticket; shared by all players of a test."""

    role = Role.ENVIRONMENT
    script: ClassVar[Callable[[str, Ticket], Awaitable[list[Trajectory]]]]
    tickets: ClassVar[list[tuple[str, Ticket]]]
    aborted: ClassVar[list[tuple[str, str]]]
    changed: ClassVar[asyncio.Event]
    playing: ClassVar[Callable[[list[Ticket]], Awaitable[list[TurnLog]]]]
    """What it hands in of its tickets."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    @register()
    async def play(self, tickets: list[Ticket]) -> int:
        for ticket in tickets:
            Player.tickets.append((self.member.member_id, ticket))
            Player.changed.set()
            for played in await Player.script(self.member.member_id, ticket):
                await publish(self.context.bus, played)
        return len(tickets)

    @register()
    async def abort(self, trajectory_ids: list[str]) -> int:
        Player.aborted += [(self.member.member_id, trajectory_id) for trajectory_id in trajectory_ids]
        Player.changed.set()
        return 0

    @register()
    async def say_that_it_leaves(self) -> None:
        self.member = msgspec.structs.replace(self.member, leaving=True)

    @register()
    async def hand_in(self) -> list[str]:
        mine = [ticket for worker, ticket in Player.tickets if worker == self.member.member_id]
        logs = await Player.playing(mine)
        for log in logs:
            subject = subjects.turn_logs(self.member.member_id)
            await self.context.bus.js.publish(subject, codec.encode(log))
        return [log.trajectory_id for log in logs]


async def publish(bus: Bus, played: Trajectory, message_id: str | None = None) -> None:
    headers = {"Nats-Msg-Id": message_id or played.trajectory_id}
    await bus.js.publish(subjects.trajectories("environment-0"), codec.encode(played), headers=headers)


async def play_at_once(worker: str, ticket: Ticket) -> list[Trajectory]:
    return [trajectory(ticket, worker=worker, reward=1.0, version=ticket.admitted_version)]


async def play_never(worker: str, ticket: Ticket) -> list[Trajectory]:
    return []


async def one_turn_each(tickets: list[Ticket]) -> list[TurnLog]:
    return [turn_log(ticket, version=ticket.admitted_version) for ticket in tickets]


async def until(condition: Callable[[], bool]) -> None:
    """Waits until what came to the players makes the condition true."""
    async with asyncio.timeout(5):
        while not condition():
            Player.changed.clear()
            await Player.changed.wait()


@pytest.fixture(autouse=True)
def _fresh_players() -> None:
    Player.script, Player.tickets, Player.aborted, Player.changed = play_at_once, [], [], asyncio.Event()
    Player.playing = one_turn_each


@dataclass
class Rollout:
    """A running service and what it works on."""

    service: RolloutService
    scheduler: RolloutScheduler
    ledger: Ledger
    directory: Path
    bus: Bus
    running: asyncio.Task[None]
    finished: list[str] = field(default_factory=list[str])

    async def batch(self) -> list[Group]:
        async with asyncio.timeout(10):
            return await self.service.get_batch()

    def records(self, kind: type[Record] | None = None) -> list[Any]:
        return [record for record in read_journal(self.directory) if kind is None or isinstance(record, kind)]


Serve = Callable[..., AbstractAsyncContextManager[Rollout]]


@pytest.fixture
def serve(server: NatsServer, tmp_path: Path) -> Serve:
    """``async with serve(config, ...)``: one controller's rollout, on a connection of its own."""

    @asynccontextmanager
    async def opened(
        config: RunConfig | None = None,
        *,
        recovery: Recovery | None = None,
        journal: Callable[[Path], Journal] = Journal,
        on_finished: Callable[[Trajectory], None] | None = None,
        stall_timeout_s: float = 60.0,
    ) -> AsyncIterator[Rollout]:
        bus = await Bus.connect(server.endpoint, "controller")
        view = MemberView(bus)
        recovery = recovery or Recovery(step=0)
        scheduler = RolloutScheduler(config or run_config(), recovery)
        finished: list[str] = []
        service = RolloutService(
            bus,
            view,
            scheduler,
            journal(tmp_path),
            on_finished=on_finished or (lambda played: finished.append(played.trajectory_id)),
            stall_timeout_s=stall_timeout_s,
        )
        watching, running = asyncio.create_task(view.run()), asyncio.create_task(service.run())
        service.generation_confirmed(0)
        service.admit()
        yield Rollout(service, scheduler, recovery.ledger, tmp_path, bus, running, finished)
        for task in (running, watching):
            task.cancel()
        await asyncio.wait({running, watching})
        await bus.close()

    return opened


def recovered(rollout: Rollout) -> Recovery:
    state = ControllerState(step=0, cursors={}, model=IDENTITY)
    return recover(read_journal(rollout.directory), state, run_config(alpha=0))


async def left_on_the_stream(bus: Bus) -> int:
    return (await bus.js.stream_info(subjects.TRAJECTORY_STREAM)).state.messages


async def test_a_batch_of_complete_groups_comes_back_and_the_journal_tells_all(
    serve: Serve, start_worker: Start, bus: Bus
):
    start_worker(Player, "environment-0", capacity=64)
    async with serve() as rollout:
        batch = await rollout.batch()
        assert [len(group.finished) for group in batch] == [2, 2]
        assert all(member.token_ids.tolist() == [0, 1, 2, 3] for group in batch for member in group.finished)
        rollout.service.trained(batch)
        trained = {member.trajectory_id for group in batch for member in group.finished}
        assert {one.trajectory_id for one in rollout.records(Ended)} == trained
        assert rollout.records(BatchFormed) == [BatchFormed(0, ("a-0.0", "a-0.1", "a-1.0", "a-1.1"))]
        finished = [one.trajectory.trajectory_id for one in rollout.records(Finished)]
        assert sorted(finished) == sorted(rollout.finished)
        assert recovered(rollout).ledger.balance() == rollout.ledger.balance()
        assert rollout.ledger.balance().outcomes == {"trained": 4}


async def test_several_batches_follow_one_another(serve: Serve, start_worker: Start):
    for number in range(2):
        start_worker(Player, f"environment-{number}", capacity=4)
    async with serve(run_config(alpha=0)) as rollout:
        for version in range(5):
            rollout.service.generation_confirmed(version)
            rollout.service.trained(await rollout.batch())
        assert rollout.ledger.balance().outcomes == {"trained": 20}
        assert rollout.ledger.balance().pending == 0
    assert {worker for worker, _ in Player.tickets} == {"environment-0", "environment-1"}
    ids = [ticket.trajectory_id for _, ticket in Player.tickets]
    assert len(ids) == len(set(ids)) == 20


async def test_a_ticket_is_in_the_journal_before_it_is_played(serve: Serve, start_worker: Start, tmp_path: Path):
    missing: list[str] = []

    async def look_first(worker: str, ticket: Ticket) -> list[Trajectory]:
        known = {one.trajectory_id for one in read_journal(tmp_path) if isinstance(one, Dispatched)}
        if ticket.trajectory_id not in known:
            missing.append(ticket.trajectory_id)
        return await play_at_once(worker, ticket)

    Player.script = look_first
    start_worker(Player, "environment-0", capacity=64)
    async with serve() as rollout:
        await rollout.batch()
    assert missing == []


class FullDisk(Journal):
    """Takes tickets and no trajectory."""

    def append(self, records: Iterable[Record], *, durable: bool = False) -> None:
        records = list(records)
        if any(isinstance(record, Finished) for record in records):
            raise OSError(28, "No space left on device")
        super().append(records, durable=durable)


async def test_a_trajectory_that_cannot_be_journaled_stays_on_the_stream(serve: Serve, start_worker: Start, bus: Bus):
    start_worker(Player, "environment-0", capacity=1)
    async with serve(journal=FullDisk) as rollout:
        await asyncio.wait({rollout.running}, timeout=5)
        with pytest.raises(ExceptionGroup, match="unhandled") as failed:
            rollout.running.result()
        assert isinstance(failed.value.exceptions[0], OSError)
        assert await left_on_the_stream(bus) == 1


async def test_what_is_acknowledged_is_in_the_journal(serve: Serve, start_worker: Start, bus: Bus):
    published: list[str] = []

    async def play_and_count(worker: str, ticket: Ticket) -> list[Trajectory]:
        await publish(bus, trajectory(ticket))
        published.append(ticket.trajectory_id)
        return []

    Player.script = play_and_count
    start_worker(Player, "environment-0", capacity=64)
    async with serve() as rollout, asyncio.timeout(10):
        await until(lambda: len(Player.tickets) > 0)
        journaled = 0
        while journaled < 8:
            come = len(published)
            unacknowledged = await left_on_the_stream(bus)
            journaled = len(rollout.records(Finished))
            assert journaled >= come - unacknowledged
        while await left_on_the_stream(bus):
            pass


async def test_what_one_controller_left_unacknowledged_comes_to_the_next(
    serve: Serve, start_worker: Start, bus: Bus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rollout_service, "_ACK_WAIT_S", 1)
    start_worker(Player, "environment-0", capacity=64)

    def die(played: Trajectory) -> None:
        raise RuntimeError("killed")

    async with serve(on_finished=die) as first:
        await asyncio.wait({first.running}, timeout=5)
        assert isinstance(first.running.exception(), ExceptionGroup)
        assert first.records(Finished) == []
    Player.script = play_never
    assert await left_on_the_stream(bus) > 0
    async with serve(), asyncio.timeout(10):
        while await left_on_the_stream(bus):
            pass


async def test_a_trajectory_that_comes_twice_counts_once(serve: Serve, start_worker: Start, bus: Bus):
    async def play_twice(worker: str, ticket: Ticket) -> list[Trajectory]:
        await publish(bus, trajectory(ticket, reward=1.0), f"first {ticket.trajectory_id}")
        return [trajectory(ticket, reward=0.0)]

    Player.script = play_twice
    start_worker(Player, "environment-0", capacity=64)
    async with serve() as rollout:
        batch = await rollout.batch()
        rollout.service.trained(batch)
        while await left_on_the_stream(bus):
            pass
        assert [member.reward for group in batch for member in group.finished] == [1.0] * 4
        ids = [one.trajectory.trajectory_id for one in rollout.records(Finished)]
        assert len(ids) == len(set(ids))
        assert recovered(rollout).ledger.balance() == rollout.ledger.balance()


async def test_a_trajectory_that_nobody_ordered_is_ignored(serve: Serve, start_worker: Start, bus: Bus):
    stranger = Ticket(trajectory_id="x.0", group_id="x", task="a", seed=0, admitted_version=0)

    async def play_more(worker: str, ticket: Ticket) -> list[Trajectory]:
        return [trajectory(stranger), trajectory(ticket)]

    Player.script = play_more
    start_worker(Player, "environment-0", capacity=64)
    async with serve() as rollout:
        await rollout.batch()
        assert "x.0" not in {one.trajectory.trajectory_id for one in rollout.records(Finished)}


async def test_what_a_lost_worker_played_is_played_by_another(serve: Serve, start_worker: Start, bus: Bus):
    async def only_the_second_plays(worker: str, ticket: Ticket) -> list[Trajectory]:
        return [trajectory(ticket, worker=worker)] if worker == "environment-1" else []

    Player.script = only_the_second_plays
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0)) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        lost = [ticket for _, ticket in Player.tickets]
        start_worker(Player, "environment-1", capacity=64)
        await expel(bus, "environment-0")
        batch = await rollout.batch()
        assert {member.worker for group in batch for member in group.finished} == {"environment-1"}
        again = [ticket for worker, ticket in Player.tickets if worker == "environment-1"]
        assert sorted((one.group_id, one.seed) for one in again) == sorted((one.group_id, one.seed) for one in lost)
        assert rollout.ledger.balance().causes == {f"failed: {WORKER_LOST}": 4}
        await publish(bus, trajectory(lost[0]))
        while await left_on_the_stream(bus):
            pass
        assert rollout.ledger.outcome(lost[0].trajectory_id) is Outcome.FAILED


async def test_others_go_on_with_what_a_leaving_worker_handed_in_and_it_gets_nothing_more(
    serve: Serve, start_worker: Start, bus: Bus, view: MemberView
):
    Player.script = play_never
    config = run_config(alpha=0)
    leaving = start_worker(Player, "environment-1", capacity=64, guest=True)
    async with serve(config) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        sent = [ticket for _, ticket in Player.tickets]
        Player.playing = lambda tickets: one_turn_each(tickets[:3])
        await call(bus, "environment-1", "say_that_it_leaves", codec.encode(()), deadline_s=10)
        await view.wait_until(lambda: view.all()["environment-1"].leaving, 10)
        start_worker(Player, "environment-0", capacity=64)
        await view.wait_for(Role.ENVIRONMENT, 2, 10)
        handed_in = await call(bus, "environment-1", "hand_in", codec.encode(()), deadline_s=10)
        await until(lambda: len(Player.tickets) == 7)
        assert {worker for worker, _ in Player.tickets[4:]} == {"environment-0"}
        logs = {ticket.trajectory_id: ticket.log for _, ticket in Player.tickets[4:]}
        assert logs == {ticket.trajectory_id: turn_log(ticket) for ticket in sent[:3]}
        assert set(codec.decode(handed_in, list[str])) == set(logs)
        assert rollout.ledger.balance().pending == 4
        leaving.cancel()
        await until(lambda: len(Player.tickets) == 8)
        worker, again = Player.tickets[7]
        assert (worker, again.seed, again.log) == ("environment-0", sent[3].seed, None)
        assert rollout.ledger.balance().causes == {f"failed: {WORKER_LEFT}": 1}
        assert [one.log.trajectory_id for one in rollout.records(HandedIn)] == list(logs)
        sent_to = [(one.trajectory_id, one.worker) for one in rollout.records(Sent)]
        assert sorted(sent_to[4:7]) == sorted((one, "environment-0") for one in logs)


async def test_a_worker_that_is_started_again_gets_the_tickets_anew(serve: Serve, start_worker: Start):
    Player.script = play_never
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0)) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        Player.script = play_at_once
        start_worker(Player, "environment-0", capacity=64)
        assert len(await rollout.batch()) == 2
        assert rollout.ledger.balance().causes == {f"failed: {WORKER_LOST}": 4}


async def test_a_worker_that_cannot_take_its_orders_is_expelled(serve: Serve, start_worker: Start):
    async def refuse(worker: str, ticket: Ticket) -> list[Trajectory]:
        if worker == "environment-0":
            raise RuntimeError("no memory")
        return await play_at_once(worker, ticket)

    Player.script = refuse
    start_worker(Player, "environment-0", capacity=64)
    async with serve() as rollout:
        await until(lambda: len(Player.tickets) > 0)
        start_worker(Player, "environment-1", capacity=64)
        batch = await rollout.batch()
        assert {member.worker for group in batch for member in group.finished} == {"environment-1"}


async def test_waiting_tickets_go_to_a_worker_that_joins_later(serve: Serve, start_worker: Start):
    async with serve() as rollout:
        getting = asyncio.create_task(rollout.batch())
        start_worker(Player, "environment-5", capacity=64)
        assert len(await getting) == 2


async def test_a_failed_member_is_played_again_alone(serve: Serve, start_worker: Start):
    async def fail_first(worker: str, ticket: Ticket) -> list[Trajectory]:
        failure = "environment died" if ticket.trajectory_id.endswith(".0") else ""
        return [trajectory(ticket, failure=failure)]

    Player.script = fail_first
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0)) as rollout:
        batch = await rollout.batch()
        assert [len(group.finished) for group in batch] == [2, 2]
        assert len(Player.tickets) == 6
        assert rollout.ledger.balance().causes == {"failed: environment died": 2}


async def test_members_that_are_not_wanted_any_more_are_aborted_where_they_run(serve: Serve, start_worker: Start):
    async def last_never_ends(worker: str, ticket: Ticket) -> list[Trajectory]:
        return [] if ticket.trajectory_id.endswith(".2") else [trajectory(ticket)]

    Player.script = last_never_ends
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(tasks={"a": {"redundancy": 1}}, alpha=0)) as rollout:
        batch = await rollout.batch()
        await until(lambda: len(Player.aborted) == 2)
        assert {trajectory_id for _, trajectory_id in Player.aborted} == {f"{group.group_id}.2" for group in batch}
        assert rollout.ledger.balance().outcomes == {"redundant": 2}


async def test_a_stalled_rollout_says_what_is_missing_and_where(serve: Serve, start_worker: Start):
    Player.script = play_never
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0), stall_timeout_s=0.4) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        with pytest.raises(WaitTimeout) as stalled:
            await rollout.batch()
    text = str(stalled.value)
    oldest = Player.tickets[0][1].trajectory_id
    assert text.startswith(f"waited 0.4 s for groups missing: 2 of a; 4 trajectories run ({oldest} on environment-0, ")
    assert "generation has version 0, the trainer 0; 1 environment workers" in text


async def test_trajectories_that_come_keep_the_stall_away(
    serve: Serve, start_worker: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rollout_service, "_REPORT_AFTER_S", 0.1)

    async def slowly(worker: str, ticket: Ticket) -> list[Trajectory]:
        await asyncio.sleep(0.2)
        return [trajectory(ticket)]

    Player.script = slowly
    start_worker(Player, "environment-0", capacity=1)
    async with serve(run_config(alpha=0), stall_timeout_s=0.5) as rollout:
        assert len(await rollout.batch()) == 2


async def test_a_rollout_without_any_worker_says_so(serve: Serve):
    async with serve(stall_timeout_s=0.2) as rollout:
        with pytest.raises(WaitTimeout, match=r"0 trajectories run \(none\).* 0 environment workers"):
            await rollout.batch()


async def test_weights_are_loaded_between_two_batches_where_these_are_played_whole(serve: Serve, start_worker: Start):
    Player.script = play_never
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(overlap="step")) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        waiting = asyncio.create_task(rollout.service.loadable(1))
        first = [ticket for _, ticket in Player.tickets]
        Player.script = play_at_once
        for ticket in first[1:]:
            await publish(rollout.bus, trajectory(ticket))
        assert (await asyncio.wait({waiting}, timeout=0.1))[1] == {waiting}
        await publish(rollout.bus, trajectory(first[0]))
        rollout.service.trained(await rollout.batch())
        async with asyncio.timeout(5), rollout.service.loading(1):
            await waiting
            assert len(Player.tickets) == 8
            rollout.service.generation_confirmed(1)
            assert rollout.records(Sent)[8:] == []
        await until(lambda: len(Player.tickets) == 12)
        assert {ticket.admitted_version for _, ticket in Player.tickets[8:]} == {1}


async def test_a_batch_that_is_never_played_whole_ends_the_wait_of_new_weights(
    serve: Serve, start_worker: Start, caplog: pytest.LogCaptureFixture
):
    Player.script = play_never
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(overlap="step"), stall_timeout_s=0.3) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        with pytest.raises(WaitTimeout, match="groups missing: 2 of a; 4 trajectories run"):
            await rollout.service.loadable(1)
    assert "for version 1 to be loaded after it: groups missing" in caplog.text


async def test_the_stream_may_be_there_already(bus: Bus):
    await open_stream(bus)
    await open_stream(bus)
    assert await left_on_the_stream(bus) == 0


async def test_what_is_played_is_handed_in_and_goes_on_with_its_turns_in_the_next_attempt(
    serve: Serve, start_worker: Start
):
    Player.script = play_never
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0)) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        rollout.service.close()
        assert await rollout.service.hand_in() == 4
        logs = {record.log.trajectory_id: record.log for record in rollout.records(HandedIn)}
        next_attempt = recovered(rollout)
    assert len(logs) == 4
    Player.script, Player.tickets = play_at_once, []
    async with serve(run_config(alpha=0), recovery=next_attempt) as rollout:
        assert len(await rollout.batch()) == 2
        assert {ticket.trajectory_id: ticket.log for _, ticket in Player.tickets} == logs
        assert len(rollout.records(Sent)) == 8


async def test_what_comes_back_while_the_run_stops_is_taken_and_nothing_is_handed_out(
    serve: Serve, start_worker: Start
):
    async def the_first_ends(tickets: list[Ticket]) -> list[TurnLog]:
        await publish(ending, trajectory(tickets[0]))
        return await one_turn_each(tickets[1:])

    Player.script, Player.playing = play_never, the_first_ends
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0)) as rollout:
        ending = rollout.service._bus  # pyright: ignore[reportPrivateUsage]
        await until(lambda: len(Player.tickets) == 4)
        rollout.service.close()
        assert await rollout.service.hand_in() == 3
        assert [one.trajectory.trajectory_id for one in rollout.records(Finished)] == ["a-0.0"]
        assert {one.log.trajectory_id for one in rollout.records(HandedIn)} == {"a-0.1", "a-1.0", "a-1.1"}
        assert len(Player.tickets) == 4


async def test_a_worker_that_does_not_hand_in_holds_nothing_up(
    serve: Serve, start_worker: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(rollout_service, "_HAND_IN_S", 0.5)

    async def hang(tickets: list[Ticket]) -> list[TurnLog]:
        await asyncio.sleep(3600)
        return []

    Player.script, Player.playing = play_never, hang
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0)) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        rollout.service.close()
        assert await rollout.service.hand_in() == 0
        assert recovered(rollout).ledger.balance().pending == 4
    assert "environment-0 did not hand in what it plays, which starts again on resume" in caplog.text


async def test_what_cannot_be_journaled_in_time_holds_the_stop_no_longer(
    serve: Serve, start_worker: Start, bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(rollout_service, "_DRAIN_S", 0.3)
    Player.script = play_never
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0)) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        rollout.service.close()
        rollout.running.cancel()
        await asyncio.wait({rollout.running})
        async with asyncio.timeout(30):
            assert await rollout.service.hand_in() == 4
    assert "4 trajectories came back and could not be journaled in time; they play again" in caplog.text


async def test_a_salvage_on_a_bus_that_hangs_ends_and_says_so(
    serve: Serve, bus: Bus, server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    monkeypatch.setattr(salvage_module, "_VIEW_S", 0.2)
    monkeypatch.setattr(salvage_module, "_STREAM_S", 0.3)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        assert await asyncio.wait_for(salvage(bus, tmp_path), 8) == 0
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert "what came back is not saved and is played again: TimeoutError" in caplog.text


async def test_a_worker_that_ends_after_the_stop_fails_nothing(serve: Serve, start_worker: Start, bus: Bus):
    Player.script = play_never
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0)) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        rollout.service.close()
        view = rollout.service._view  # pyright: ignore[reportPrivateUsage]
        gone = asyncio.Event()
        view.listen(lambda before, after: gone.set() if before and not after else None)
        await expel(bus, "environment-0")
        async with asyncio.timeout(5):
            await gone.wait()
        assert rollout.records(Ended) == []
        assert rollout.ledger.balance().pending == 4


async def test_what_a_dead_controller_left_is_saved_once(
    serve: Serve, start_worker: Start, bus: Bus, server: NatsServer, tmp_path: Path
):
    """One trajectory is in the journal but not acknowledged, one was never read, two are being played."""

    def die(played: Trajectory) -> None:
        raise RuntimeError("killed")

    Player.script = play_never
    start_worker(Player, "environment-0", capacity=64)
    async with serve(run_config(alpha=0), on_finished=die) as rollout:
        await until(lambda: len(Player.tickets) == 4)
        tickets = sorted((ticket for _, ticket in Player.tickets), key=lambda ticket: ticket.trajectory_id)
        await publish(bus, trajectory(tickets[0]))
        await asyncio.wait({rollout.running}, timeout=5)
        await publish(bus, trajectory(tickets[1]))

    async def the_others(mine: list[Ticket]) -> list[TurnLog]:
        return await one_turn_each(tickets[2:])

    Player.playing = the_others
    journal = Journal(tmp_path)
    journal.append([Finished(trajectory(tickets[0]))])
    journal.close()
    async with asyncio.timeout(10):
        assert await salvage(bus, tmp_path) == 3
    records = list(read_journal(tmp_path))
    came = [one.trajectory.trajectory_id for one in records if isinstance(one, Finished)]
    assert came == [tickets[0].trajectory_id, tickets[1].trajectory_id]
    logs = {one.log.trajectory_id for one in records if isinstance(one, HandedIn)}
    assert logs == {ticket.trajectory_id for ticket in tickets[2:]}
