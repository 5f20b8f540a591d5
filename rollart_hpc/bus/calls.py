"""Method calls between processes: request-reply with a deadline, safe to repeat.

A caller sends the same call id again while no answer has come; the server runs each id once and keeps the
last answers, so a lost answer costs a retry and not a second execution.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES
from rollart_hpc.errors import BusError, NotReachableError, RemoteError, text_of

_log = logging.getLogger(__name__)
_RESEND_AFTER_S = 20.0
_ANSWERS_KEPT = 256


class CallRequest(msgspec.Struct, frozen=True, array_like=True):
    """One call of a worker's method."""

    call_id: str
    method: str
    arguments: bytes
    """The encoded tuple of positional arguments."""


class CallAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What came of it: a result, or the error's type and text."""

    result: bytes
    error_type: str = ""
    error: str = ""


async def call(bus: Bus, member_id: str, method: str, arguments: bytes, *, deadline_s: float) -> bytes:
    """Calls a method of one worker and returns its encoded result.

    Raises:
        NotReachableError: nobody serves the member's calls, or no answer came within the deadline.
        RemoteError: the method raised.
        BusError: the arguments are larger than a message may be.
    """
    payload = msgspec.msgpack.encode(CallRequest(secrets.token_hex(8), method, arguments))
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise BusError(f"{member_id}.{method}: {len(payload)} bytes of arguments, at most {MAX_PAYLOAD_BYTES} travel")
    loop = asyncio.get_running_loop()
    ends = loop.time() + deadline_s
    while (left := ends - loop.time()) > 0:
        try:
            message = await bus.nc.request(subjects.call(member_id), payload, timeout=min(left, _RESEND_AFTER_S))
        except NoRespondersError as error:
            raise NotReachableError(f"{member_id}.{method}: nobody serves {subjects.call(member_id)}") from error
        except (NatsTimeoutError, TimeoutError):
            continue
        answer = msgspec.msgpack.decode(message.data, type=CallAnswer)
        if answer.error_type:
            raise RemoteError(f"{member_id}.{method}: {answer.error_type}: {answer.error}", answer.error_type)
        return answer.result
    raise NotReachableError(f"{member_id}.{method}: no answer within {deadline_s:g} s")


class CallServer:
    """Serves one member's calls with ``handle(method, arguments) -> result``, all encoded."""

    def __init__(self, bus: Bus, member_id: str, handle: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self._bus, self._member_id, self._handle = bus, member_id, handle
        self._answers: OrderedDict[str, asyncio.Task[CallAnswer]] = OrderedDict()

    async def run(self) -> None:
        """Serves until cancelled; running calls are cancelled with it."""
        async with asyncio.TaskGroup() as group:

            async def receive(message: Msg) -> None:
                group.create_task(self._serve(group, message))

            subscription = await self._bus.subscribe(subjects.call(self._member_id), receive)
            try:
                await asyncio.Event().wait()
            finally:
                await subscription.unsubscribe()

    async def _serve(self, group: asyncio.TaskGroup, message: Msg) -> None:
        request = msgspec.msgpack.decode(message.data, type=CallRequest)
        running = self._answers.get(request.call_id)
        if running is None:
            running = group.create_task(self._execute(request))
            self._answers[request.call_id] = running
            while len(self._answers) > _ANSWERS_KEPT:
                self._answers.popitem(last=False)
        answer = msgspec.msgpack.encode(await asyncio.shield(running))
        if len(answer) > MAX_PAYLOAD_BYTES:
            text = f"{len(answer)} bytes of result, at most {MAX_PAYLOAD_BYTES} travel"
            answer = msgspec.msgpack.encode(CallAnswer(b"", BusError.__name__, text))
        try:
            await message.respond(answer)
        except NatsError as error:
            _log.warning("an answer is kept until the call comes again: %r", error)

    async def _execute(self, request: CallRequest) -> CallAnswer:
        try:
            return CallAnswer(await self._handle(request.method, request.arguments))
        except Exception as error:
            _log.exception("call of %s failed", request.method)
            return CallAnswer(b"", type(error).__name__, text_of(error))
