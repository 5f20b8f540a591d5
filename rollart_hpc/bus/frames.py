"""Messages over a stream socket between two processes of one machine: four bytes of length, then the message.

Three ways to use it: `FrameSplitter` does no I/O, `send_message` and `receive_message` block, and `Channel`
belongs to an event loop. A channel writes what was queued once per tick of the loop, and hands over
everything that one read brought: many small messages cost few system calls.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18
MAX_MESSAGE_BYTES = 1 << 28


class FrameSplitter:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Takes the next bytes of the stream and returns the messages that they complete.

        Raises:
            ValueError: a length above `MAX_MESSAGE_BYTES`; the stream is of no use any more.
        """
        self._pending += data
        messages: list[bytes] = []
        start = 0
        while len(self._pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending, start)
            if length > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {length} bytes is announced; at most {MAX_MESSAGE_BYTES} are expected")
            end = start + _LENGTH.size + length
            if len(self._pending) < end:
                break
            messages.append(bytes(self._pending[start + _LENGTH.size : end]))
            start = end
        del self._pending[:start]
        return messages


def frame(message: bytes) -> bytes:
    """The message with its length before it."""
    return _LENGTH.pack(len(message)) + message


def send_message(connection: socket.socket, message: bytes) -> None:
    """Sends one message over a blocking socket."""
    connection.sendall(frame(message))


def receive_message(connection: socket.socket) -> bytes | None:
    """The next message from a blocking socket; None when the other side has closed."""
    header = _receive_exactly(connection, _LENGTH.size)
    return None if header is None else _receive_exactly(connection, _LENGTH.unpack(header)[0])


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        received = connection.recv(size - len(data))
        if not received:
            return None
        data += received
    return bytes(data)


class Channel:
    """One end of a socket on the running event loop.

    Args:
        connection: owned by the channel from now on.
        on_messages: called with one or more messages in the order in which they were sent.
        on_end: called once, when the other side has closed or the stream is broken; never after `close`.
    """

    def __init__(
        self, connection: socket.socket, on_messages: Callable[[list[bytes]], None], on_end: Callable[[], None]
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._on_messages = on_messages
        self._on_end = on_end
        self._splitter = FrameSplitter()
        self._outgoing = bytearray()
        self._flush_is_due = False
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection.fileno(), self._read_once)

    def send(self, message: bytes) -> None:
        """Queues one message; it leaves with all others of this tick. Nothing happens once the channel is closed."""
        self._outgoing += frame(message)
        if self._is_open and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes what is queued now, as far as the other side takes it; the rest follows by itself."""
        self._flush_is_due = False
        if not self._is_open or not self._outgoing:
            return
        try:
            del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._end()
            return
        if self._outgoing:
            self._flush_is_due = True
            self._loop.add_writer(self._connection.fileno(), self._flush_rest)

    def drain(self) -> None:
        """Reads and hands over everything that has arrived."""
        while self._read_once():
            pass

    def close(self) -> None:
        """Closes this end; nothing is called back any more."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._connection.fileno())
            self._loop.remove_writer(self._connection.fileno())
            self._connection.close()

    def _flush_rest(self) -> None:
        self._loop.remove_writer(self._connection.fileno())
        self.flush()

    def _read_once(self) -> bool:
        if not self._is_open:
            return False
        try:
            data = self._connection.recv(_READ_BYTES)
            messages = self._splitter.feed(data)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            self._end()
            return False
        if not data:
            self._end()
            return False
        if messages:
            self._on_messages(messages)
        return True

    def _end(self) -> None:
        self.close()
        self._on_end()
