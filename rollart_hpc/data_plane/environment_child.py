"""The child process that runs environments of one class: ``python -m rollart_hpc.data_plane.environment_child``.

Consumes requests from its parent's `EnvironmentHost` and answers each; waits for nothing else; ends when it is told to
or when the parent's end of the socket closes. It never queues: the parent sends no more requests at once than it can
run, so that what is sent has begun.

- Calls run one at a time in the main thread, each instance with its own global random states; where the class is
  thread-safe, in `CALLS_AT_ONCE` threads.
- An instance that failed is closed and forgotten; the next reset of its number makes a new one.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from rollart_hpc.bus import codec
from rollart_hpc.bus.child import enter
from rollart_hpc.bus.frames import receive_message, send_message
from rollart_hpc.data_plane.environment_instance import EnvironmentInstance
from rollart_hpc.data_plane.environment_messages import (
    Answer,
    Call,
    Close,
    Closed,
    End,
    Failed,
    Load,
    Loaded,
    Played,
    Refused,
    Reply,
    Request,
    Reset,
)
from rollart_hpc.data_plane.environment_spec import RAISED
from rollart_hpc.data_plane.random_states import RandomStates
from rollart_hpc.errors import ConfigError, EnvironmentFault

CALLS_AT_ONCE = 16
"""Of a thread-safe class in one child."""

_log = logging.getLogger(__name__)
_REQUEST = cast("type[Request]", Request)


class _Child:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._load: Load | None = None
        self._instances: dict[int, EnvironmentInstance] = {}
        self._random = RandomStates()
        self._threads: ThreadPoolExecutor | None = None

    def serve(self) -> None:
        while (message := receive_message(self._connection)) is not None:
            request = codec.decode(message, _REQUEST)
            if isinstance(request, End):
                break
            if isinstance(request, Load):
                self._send(self._loaded(request))
            elif self._threads is not None:
                self._threads.submit(self._serve_in_thread, request)
            else:
                self._random.install(request.instance)
                self._send(self._answer(request))
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for number in list(self._instances):
            self._close(number)

    def _loaded(self, request: Load) -> Loaded | Refused:
        self._load = request
        try:
            properties = EnvironmentInstance(request.entry_point, request.args).properties
        except ConfigError as error:
            return Refused(str(error))
        if properties.thread_safe:
            self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="environment")
        return Loaded(properties)

    def _serve_in_thread(self, request: Call) -> None:
        try:
            self._send(self._answer(request))
        except BaseException:
            _log.exception("a request could not be answered")
            os._exit(1)

    def _answer(self, request: Call) -> Answer:
        try:
            if isinstance(request, Close):
                self._close(request.instance)
                return Closed(request.instance)
            instance = self._instance(request.instance)
            begin = time.perf_counter()
            if isinstance(request, Reset):
                transition = instance.reset(request.seed, request.task)
            else:
                transition = instance.step(request.action)
            return Played(request.instance, transition, time.perf_counter() - begin)
        except EnvironmentFault as fault:
            self._close(request.instance)
            return Failed(request.instance, fault.cause, str(fault).removeprefix(f"{fault.cause}: "))

    def _instance(self, number: int) -> EnvironmentInstance:
        instance = self._instances.get(number)
        if instance is None:
            if self._load is None:
                raise EnvironmentFault(RAISED, "no environment is loaded")
            instance = self._instances[number] = EnvironmentInstance(self._load.entry_point, self._load.args)
        return instance

    def _close(self, number: int) -> None:
        instance = self._instances.pop(number, None)
        try:
            if instance is not None:
                instance.close()
        except EnvironmentFault:
            pass  # It is logged where it was raised, and the instance is gone anyway.
        finally:
            self._random.forget(number)

    def _send(self, reply: Reply) -> None:
        with self._sending:
            send_message(self._connection, codec.encode(reply))


def main() -> None:
    """Serves requests until the end."""
    _Child(enter()).serve()


if __name__ == "__main__":
    main()
