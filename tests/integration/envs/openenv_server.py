"""A server of OpenEnv's protocol, as the project's own one speaks it: one environment a connection.

The game counts: an action ``{"message": TEXT}`` adds the length of the text; 10 or more ends the episode with 1. The
seed is where it begins. Certain messages make the server misbehave.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.server import Server, ServerConnection, serve


class CountingServer:
    """Counts its sessions; at most ``capacity`` at a time."""

    def __init__(self, capacity: int = 100) -> None:
        self.capacity = capacity
        self.num_active = self.num_closed_by_message = 0
        self.resets: list[dict[str, Any]] = []
        self.ended = threading.Condition()

    def session(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        assert connection.request.path == "/ws"
        if self.num_active >= self.capacity:
            connection.send(error("CAPACITY_REACHED", "no session is free"))
            return
        self.num_active += 1
        try:
            self._play(connection)
        finally:
            with self.ended:
                self.num_active -= 1
                self.ended.notify_all()

    def _play(self, connection: ServerConnection) -> None:
        total = 0
        for text in connection:
            message = json.loads(text)
            assert set(message) <= {"type", "data"}
            if message["type"] == "close":
                self.num_closed_by_message += 1
                return
            if message["type"] == "reset":
                self.resets.append(message["data"])
                total = message["data"]["seed"]
                connection.send(observation(total, None))
                continue
            action = message["data"]
            if set(action) != {"message"} or not isinstance(action["message"], str):
                connection.send(error("VALIDATION_ERROR", "Invalid message"))
            elif action["message"] == "raise":
                connection.send(error("EXECUTION_ERROR", "the game broke"))
            elif action["message"] == "leave":
                return
            elif action["message"] != "silence":
                total += len(action["message"])
                connection.send(observation(total, float(total >= 10)))


def observation(total: int, reward: float | None) -> str:
    data = {"observation": {"total": total, "text": f"total {total}"}, "reward": reward, "done": total >= 10}
    return json.dumps({"type": "observation", "data": data | {"metadata": {"parity": total % 2}}})


def error(code: str, message: str) -> str:
    return json.dumps({"type": "error", "data": {"code": code, "message": message}})


@contextmanager
def counting_server(capacity: int = 100) -> Iterator[tuple[CountingServer, str]]:
    """The server and its URL."""
    game = CountingServer(capacity)
    server: Server
    with serve(game.session, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield game, f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()
