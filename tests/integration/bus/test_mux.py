import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.mux import MuxClient, MuxServer
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.errors import BusError


class Question(msgspec.Struct, frozen=True, array_like=True):
    request_id: int
    text: str


class Reply(msgspec.Struct, frozen=True, array_like=True):
    request_id: int
    text: str


@asynccontextmanager
async def connected(bus: Bus, handle):
    client: MuxClient[Question, Reply] = MuxClient(bus, "asker", "test", Reply)
    server: MuxServer[Question, Reply] = MuxServer(bus, "w", Question, lambda *batch: handle(server, *batch))
    tasks = [asyncio.create_task(client.run()), asyncio.create_task(server.run())]
    await asyncio.sleep(0)
    await bus.nc.flush()
    try:
        yield client
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def echo(server: MuxServer, inbox: str, requests: list[Question], aborts: list[int]) -> None:
    for request in requests:
        server.answer(inbox, Reply(request.request_id, request.text.upper()))


async def test_every_request_gets_its_own_answer(bus: Bus):
    async with connected(bus, echo) as client, asyncio.timeout(10):
        ids = [client.next_id() for _ in range(2000)]
        answers = await asyncio.gather(*(client.send("w", Question(number, f"q{number}")) for number in ids))
    assert [answer.text for answer in answers] == [f"Q{number}" for number in ids]


async def test_what_accumulates_travels_together(bus: Bus):
    batches: list[int] = []

    def count(server: MuxServer, inbox: str, requests: list[Question], aborts: list[int]) -> None:
        batches.append(len(requests))
        echo(server, inbox, requests, aborts)

    async with connected(bus, count) as client, asyncio.timeout(10):
        await asyncio.gather(*(client.send("w", Question(client.next_id(), "")) for _ in range(200)))
    assert sum(batches) == 200
    assert len(batches) < 20


async def test_an_abort_reaches_the_worker_after_its_request(bus: Bus):
    seen: list[tuple[str, int]] = []

    def note(server: MuxServer, inbox: str, requests: list[Question], aborts: list[int]) -> None:
        seen.extend(("add", request.request_id) for request in requests)
        for request_id in aborts:
            seen.append(("abort", request_id))
            server.answer(inbox, Reply(request_id, "aborted"))

    async with connected(bus, note) as client, asyncio.timeout(10):
        future = client.send("w", Question(1, ""))
        client.abort("w", 1)
        assert (await future).text == "aborted"
    assert seen == [("add", 1), ("abort", 1)]


async def test_a_forgotten_request_ignores_its_answer(bus: Bus):
    async with connected(bus, echo) as client, asyncio.timeout(10):
        future = client.send("w", Question(1, ""))
        client.forget(1)
        assert (await client.send("w", Question(2, "next"))).text == "NEXT"
    with pytest.raises(asyncio.CancelledError):
        await future


async def test_what_is_too_much_for_one_message_travels_as_several(bus: Bus):
    async with connected(bus, echo) as client, asyncio.timeout(20):
        texts = ["x" * (1 << 20) + str(number) for number in range(20)]
        answers = await asyncio.gather(*(client.send("w", Question(client.next_id(), text)) for text in texts))
    assert [answer.text for answer in answers] == [text.upper() for text in texts]


async def test_a_request_that_cannot_travel_fails_alone(bus: Bus):
    async with connected(bus, echo) as client, asyncio.timeout(20):
        huge = client.send("w", Question(1, "x" * (MAX_PAYLOAD_BYTES + 1)))
        small = client.send("w", Question(2, "small"))
        with pytest.raises(BusError, match="at most"):
            await huge
        assert (await small).text == "SMALL"
