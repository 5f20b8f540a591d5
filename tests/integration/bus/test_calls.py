import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager

import msgspec
import psutil
import pytest

from rollart_hpc.bus import connection, subjects
from rollart_hpc.bus.calls import CallAnswer, CallRequest, CallServer, call
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES, BusEndpoint, NatsServer
from rollart_hpc.errors import BusError, NotReachableError, RemoteError


@asynccontextmanager
async def serving(bus: Bus, handle):
    task = asyncio.create_task(CallServer(bus, "w", handle).run())
    await bus.nc.flush()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_call_returns_what_the_method_returned(bus: Bus):
    async def handle(method: str, arguments: bytes) -> bytes:
        return method.encode() + arguments

    async with serving(bus, handle):
        assert await call(bus, "w", "say", b"hello", deadline_s=5) == b"sayhello"


async def test_an_error_of_the_method_reaches_the_caller_and_the_server_goes_on(bus: Bus):
    async def handle(method: str, arguments: bytes) -> bytes:
        raise ValueError("no such thing")

    async with serving(bus, handle):
        for _ in range(2):
            with pytest.raises(RemoteError, match=r"w.break: ValueError: no such thing"):
                await call(bus, "w", "break", b"", deadline_s=5)


async def test_a_call_that_is_sent_twice_runs_once(bus: Bus):
    runs = 0

    async def handle(method: str, arguments: bytes) -> bytes:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.05)
        return b"%d" % runs

    payload = msgspec.msgpack.encode(CallRequest("id", "count", b""))
    async with serving(bus, handle):
        messages = await asyncio.gather(*(bus.nc.request(subjects.call("w"), payload, timeout=5) for _ in range(3)))
    assert {msgspec.msgpack.decode(message.data, type=CallAnswer).result for message in messages} == {b"1"}
    assert runs == 1


async def test_nobody_there_is_told_at_once(bus: Bus):
    async with asyncio.timeout(2):
        with pytest.raises(NotReachableError, match=r"nobody serves call.absent"):
            await call(bus, "absent", "say", b"", deadline_s=60)


async def test_a_call_without_an_answer_ends_at_its_deadline(bus: Bus):
    async def handle(method: str, arguments: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    async with serving(bus, handle):
        with pytest.raises(NotReachableError, match=r"no answer within 0.2 s"):
            await call(bus, "w", "sleep", b"", deadline_s=0.2)


async def test_arguments_above_the_payload_limit_are_refused_with_the_sizes(bus: Bus):
    with pytest.raises(BusError, match=f"at most {MAX_PAYLOAD_BYTES} travel"):
        await call(bus, "w", "say", bytes(MAX_PAYLOAD_BYTES + 1), deadline_s=5)


async def test_a_wrong_token_is_refused_within_the_deadline(server: NatsServer):
    with pytest.raises(NotReachableError, match="refused the token"):
        await Bus.connect(BusEndpoint(url=server.endpoint.url, token="wrong"), "intruder")


async def test_a_server_that_says_nothing_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "_CONNECT_DEADLINE_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NotReachableError, match=rf"test: no bus at {url} within 0\.3 s"):
            await Bus.connect(BusEndpoint(url=url, token="t"), "test")


async def test_a_connection_to_a_server_that_hangs_is_closed_in_time(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(connection, "_CLOSE_DEADLINE_S", 0.2)
    bus = await Bus.connect(server.endpoint, "test")
    os.kill(server.process.pid, signal.SIGSTOP)
    while psutil.Process(server.process.pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        await asyncio.wait_for(bus.close(), 8)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert "closed with unsent messages" in caplog.text
