import asyncio
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.bus.frames import MAX_MESSAGE_BYTES, Channel, FrameSplitter, frame, receive_message, send_message


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 30))
def test_messages_survive_any_cut_of_the_stream(messages: list[bytes], size: int) -> None:
    stream = b"".join(frame(message) for message in messages)
    splitter = FrameSplitter()
    received = [m for start in range(0, len(stream), size) for m in splitter.feed(stream[start : start + size])]
    assert received == messages


def test_an_absurd_length_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes is announced"):
        FrameSplitter().feed((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))


def test_blocking_ends_exchange_messages_until_one_closes() -> None:
    one, other = socket.socketpair()
    send_message(one, b"hello")
    assert receive_message(other) == b"hello"
    one.close()
    assert receive_message(other) is None
    other.close()


async def test_a_channel_sends_more_than_the_socket_holds_and_tells_the_end() -> None:
    one, other = socket.socketpair()
    messages = [os.urandom(1 << 20) for _ in range(4)]
    received: list[bytes] = []
    is_complete, ended = asyncio.Event(), asyncio.Event()

    def receive(some: list[bytes]) -> None:
        received.extend(some)
        if len(received) == len(messages):
            is_complete.set()

    reader = Channel(other, receive, ended.set)
    writer = Channel(one, received.extend, ended.set)
    for message in messages:
        writer.send(message)
    async with asyncio.timeout(5):
        await is_complete.wait()
        writer.close()
        await ended.wait()
    reader.close()
    assert received == messages


async def test_what_is_sent_after_the_end_is_dropped_quietly() -> None:
    one, other = socket.socketpair()
    ended = asyncio.Event()
    channel = Channel(one, lambda _: None, ended.set)
    other.close()
    channel.send(b"late")
    channel.flush()
    async with asyncio.timeout(5):
        await ended.wait()
    channel.send(b"later")
    channel.flush()
