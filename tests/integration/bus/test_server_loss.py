"""The bus dies by SIGKILL and is started again in its place: nothing that is in it is lost, everybody comes back."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from rollart_hpc.bus import lease, resending
from rollart_hpc.bus.calls import CallServer, call
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, Membership, MemberView
from rollart_hpc.bus.mux import MuxClient, MuxServer
from rollart_hpc.bus.pull import PullConsumer
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.errors import NotReachableError
from rollart_hpc.types import Role

DEADLINE_S = 30


async def lose(server: NatsServer) -> None:
    os.kill(server.process.pid, signal.SIGKILL)
    await server.process.wait()


async def begin_to_serve(server: CallServer) -> asyncio.Task[None]:
    """Its task, which has subscribed: a flush then reaches the server after the subscription."""
    serving = asyncio.create_task(server.run())
    for _ in range(10):
        await asyncio.sleep(0)
    return serving


async def lose_and_restart(server: NatsServer) -> None:
    await lose(server)
    await server.restart()


async def test_a_server_that_still_runs_is_replaced_when_it_is_restarted(server: NatsServer, bus: Bus):
    before = server.process.pid
    await (await bus.bucket("kept")).put("key", b"value")
    await server.restart()
    assert server.process.pid != before
    async with asyncio.timeout(DEADLINE_S):
        assert (await (await bus.bucket("kept")).get("key")).value == b"value"


async def test_a_call_in_flight_is_answered_and_runs_once(server: NatsServer, bus: Bus):
    begun, go, runs = asyncio.Event(), asyncio.Event(), []

    async def handle(method: str, arguments: bytes) -> bytes:
        runs.append(method)
        begun.set()
        await go.wait()
        return arguments

    other = await Bus.connect(server.endpoint, "other")
    serving = await begin_to_serve(CallServer(other, "worker-0", handle))
    await other.nc.flush()
    calling = asyncio.create_task(call(bus, "worker-0", "work", b"argument", deadline_s=DEADLINE_S))
    await asyncio.wait_for(begun.wait(), DEADLINE_S)
    await lose_and_restart(server)
    go.set()
    # Well before it would have been sent again without an answer, and no one is taken for gone.
    assert await asyncio.wait_for(calling, 15) == b"argument"
    assert runs == ["work"]
    serving.cancel()
    await asyncio.wait({serving})
    await other.close()


async def test_a_call_made_while_there_is_no_server_waits_for_it(server: NatsServer, bus: Bus):
    async def handle(method: str, arguments: bytes) -> bytes:
        return arguments

    serving = await begin_to_serve(CallServer(bus, "worker-0", handle))
    await bus.nc.flush()
    await lose(server)
    caller = asyncio.create_task(call(bus, "worker-0", "work", b"argument", deadline_s=DEADLINE_S))
    await asyncio.sleep(0.5)
    assert not caller.done()
    await server.restart()
    assert await asyncio.wait_for(caller, DEADLINE_S) == b"argument"
    serving.cancel()
    await asyncio.wait({serving})


async def test_a_request_that_was_lost_with_the_server_is_sent_again_at_once(server: NatsServer, bus: Bus):
    async def handle(method: str, arguments: bytes) -> bytes:
        return arguments

    other = await Bus.connect(server.endpoint, "other")
    serving = await begin_to_serve(CallServer(other, "worker-0", handle))
    await other.nc.flush()
    os.kill(server.process.pid, signal.SIGSTOP)
    calling = asyncio.create_task(call(bus, "worker-0", "work", b"argument", deadline_s=DEADLINE_S))
    await asyncio.sleep(0.5)
    await lose_and_restart(server)
    assert await asyncio.wait_for(calling, 15) == b"argument"
    serving.cancel()
    await asyncio.wait({serving})
    await other.close()


async def test_whoever_comes_back_a_little_later_is_not_taken_for_gone(server: NatsServer, bus: Bus):
    async def handle(method: str, arguments: bytes) -> bytes:
        return arguments

    await lose_and_restart(server)
    await asyncio.wait_for(bus.nc.wait_here(), DEADLINE_S)
    calling = asyncio.create_task(call(bus, "worker-0", "work", b"argument", deadline_s=DEADLINE_S))
    await asyncio.sleep(0.5)
    serving = asyncio.create_task(CallServer(bus, "worker-0", handle).run())
    assert await asyncio.wait_for(calling, DEADLINE_S) == b"argument"
    serving.cancel()
    await asyncio.wait({serving})


async def test_nobody_there_is_believed_when_everybody_had_time_to_come_back(
    server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resending, "_SETTLE_S", 0.5)
    await lose_and_restart(server)
    with pytest.raises(NoRespondersError):
        await bus.nc.request("nobody", b"", timeout=DEADLINE_S)


async def test_members_stay_members(server: NatsServer, bus: Bus, view: MemberView):
    own = Membership(bus, Member(member_id="reward-0", role=Role.REWARD, hardware="cpu", node="n", pid=1))
    await own.join()
    await view.wait_for(Role.REWARD, 1, DEADLINE_S)
    ends: list[object] = []
    view.listen(lambda before, after: ends.append(before) if after is None else None)
    renewing = asyncio.create_task(own.run())
    for version in (1, 2):
        await lose_and_restart(server)
        async with asyncio.timeout(DEADLINE_S):
            await own.update(msgspec.structs.replace(own.member, version=version))
            while (member := view.get("reward-0")) is None or member.version != version:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert not renewing.done()
    assert ends == []
    renewing.cancel()
    await asyncio.wait({renewing})


async def test_a_member_renews_at_once_when_the_bus_is_back(
    server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease, "RENEW_EVERY_S", 3600.0)
    own = Membership(bus, Member(member_id="reward-0", role=Role.REWARD, hardware="cpu", node="n", pid=1))
    await own.join()
    renewing = asyncio.create_task(own.run())
    before = own._revision
    await asyncio.sleep(0.1)
    await lose_and_restart(server)
    async with asyncio.timeout(DEADLINE_S):
        while own._revision == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    renewing.cancel()
    await asyncio.wait({renewing})


async def test_a_renewal_whose_acknowledgement_was_lost_fences_nobody(bus: Bus):
    own = Membership(bus, Member(member_id="reward-0", role=Role.REWARD, hardware="cpu", node="n", pid=1))
    await own.join()
    before = own._revision
    await own.update(own.member)
    own._revision = before
    await own.update(own.member)
    assert own._revision > before


async def test_a_consumer_gets_what_was_stored_before_and_after(server: NatsServer, bus: Bus):
    await bus.js.add_stream(StreamConfig(name="S", subjects=["s"]))
    await bus.js.add_consumer("S", ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT))
    consumer = PullConsumer(bus, "S", "c")
    await consumer.start()
    await bus.js.publish("s", b"1")
    reading = asyncio.create_task(consumer.read())
    (first,) = await asyncio.wait_for(reading, DEADLINE_S)
    assert first.data == b"1"
    await first.ack_sync()
    reading = asyncio.create_task(consumer.read())
    await lose_and_restart(server)
    await bus.js.publish("s", b"2", headers={"Nats-Msg-Id": "2"})
    # What the client library's open request would take to expire is 20 s.
    assert [message.data for message in await asyncio.wait_for(reading, 15)] == [b"2"]


class Asked(msgspec.Struct, frozen=True, array_like=True):
    request_id: int


async def test_a_batched_request_in_flight_is_answered(server: NatsServer, bus: Bus):
    received: list[tuple[str, int]] = []
    arrived = asyncio.Event()

    def receive(inbox: str, requests: list[Asked], aborts: list[int]) -> None:
        received.extend((inbox, request.request_id) for request in requests)
        arrived.set()

    worker = MuxServer(bus, "worker-0", Asked, receive)
    client = MuxClient[Asked, Asked](bus, "asker", "c", Asked)
    running = [asyncio.create_task(worker.run()), asyncio.create_task(client.run())]
    answer = client.send("worker-0", Asked(client.next_id()))
    await asyncio.wait_for(arrived.wait(), DEADLINE_S)
    arrived.clear()
    await lose_and_restart(server)
    # It comes again, since the worker or its answer may have been lost.
    await asyncio.wait_for(arrived.wait(), DEADLINE_S)
    inbox, request_id = received[-1]
    worker.answer(inbox, Asked(request_id))
    assert await asyncio.wait_for(answer, DEADLINE_S) == Asked(request_id)
    assert client._sent == {}
    for task in running:
        task.cancel()
    await asyncio.wait(running)


async def test_a_server_that_stays_away_is_told_after_its_time(
    server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resending, "AWAY_DEADLINE_S", 1.0)
    lost = asyncio.create_task(bus.nc.wait_lost())
    await lose_and_restart(server)
    await asyncio.wait_for(bus.nc.wait_here(), DEADLINE_S)
    await asyncio.sleep(1.5)
    assert not lost.done()
    await lose(server)
    await asyncio.wait_for(lost, DEADLINE_S)
    await server.restart()


async def test_a_request_does_not_wait_for_ever_for_a_server(
    server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resending, "AWAY_DEADLINE_S", 0.5)
    await lose(server)
    with pytest.raises(NotReachableError, match=r"worker-0\.work: no answer within 1 s"):
        async with asyncio.timeout(DEADLINE_S):
            await call(bus, "worker-0", "work", b"", deadline_s=1.0)
    await server.restart()


async def test_a_server_that_cannot_be_started_again_shows_the_end_of_its_log(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from rollart_hpc.bus import server as module
    from rollart_hpc.errors import BusError

    monkeypatch.setattr(module, "_READY_DEADLINE_S", 0.5)
    (server._store.path / "nats.json").write_text("{ nonsense")
    with pytest.raises(BusError, match=r"could not be started again within 0\.5 s; its log \(.*nats\.log\)"):
        await server.restart()
