"""An environment of OpenEnv (github.com/meta-pytorch/OpenEnv) behind its WebSocket.

One connection is one session with an environment of its own on the server; the HTTP routes /reset and /step have none,
so that no episode can be played over them. Messages are JSON:

  to the server      {"type": "reset", "data": {...}}, {"type": "step", "data": ACTION}, {"type": "close"}
  from the server    {"type": "observation", "data": {"observation": {...}, "reward": 0.5, "done": false}}
                     {"type": "error", "data": {"code": ..., "message": ...}}

Invariants:
  - An action that the server refuses as invalid is the policy's: an observation. Every other error of the server, and a
    connection that is lost or silent, is raised, and the next reset connects anew.
  - Nothing is shared between instances; each waits for its own server.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from rollart_hpc.envs.adapters.plain_info import plain_info
from rollart_hpc.interfaces import EnvironmentProperties

_INVALID_ACTION = "VALIDATION_ERROR"
_MAX_MESSAGE_BYTES = 100 << 20
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class OpenEnvError(RuntimeError):
    """The server could not do what it was asked; its own code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class OpenEnv:
    """One session with an environment server.

    The last ``info`` says ``return``, ``turns``, ``invalid_actions`` and the server's ``metadata``.

    Args:
        url: of the server, without ``/ws``; http, https, ws or wss.
        action_field: of the action, which gets the policy's text; empty: the text is the action, as a JSON object.
        action: further fields of every action.
        observation_field: of the observation, which the policy sees; empty: all of it, as JSON.
        reset_args: further arguments of the server's reset; those of a task come on top of them.
        success_return: sum of rewards from which on an episode is a success; without it no ``success`` is reported.
        connect_timeout_s: for a connection.
        answer_timeout_s: for each answer of the server; `reset_timeout_s` and `step_timeout_s` of the task hold too.
        instructions: text before the first observation.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(thread_safe=True)

    def __init__(
        self,
        *,
        url: str,
        action_field: str = "",
        action: Mapping[str, Any] | None = None,
        observation_field: str = "",
        reset_args: Mapping[str, Any] | None = None,
        success_return: float | None = None,
        connect_timeout_s: float = 10.0,
        answer_timeout_s: float = 60.0,
        instructions: str = "",
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.netloc:
            raise ValueError(f"url is {url!r}; expected the server's, as in http://host:8000")
        path = parts.path.rstrip("/").removesuffix("/ws")
        self._url = f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}/ws"
        self._action_field = action_field
        self._action = dict(action or {})
        self._observation_field = observation_field
        self._reset_args = dict(reset_args or {})
        self._success_return = success_return
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._instructions = instructions
        self._connection: ClientConnection | None = None

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Starts an episode on the server; the fields of a task are arguments of its reset."""
        arguments = self._reset_args | dict(task) | {"seed": seed}
        is_used = self._connection is not None
        try:
            data = self._ask("reset", arguments)
        except (ConnectionClosed, OpenEnvError):
            if not is_used:
                raise
            # The server ended the session of the episode before, as it does with idle ones.
            self._abandon()
            data = self._ask("reset", arguments)
        self._return, self._turns, self._invalid_actions = 0.0, 0, 0
        self._last = self._shown(data)
        return self._instructions + self._last, self._info(data)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Sends the policy's text as an action."""
        self._turns += 1
        try:
            data = self._ask("step", self._payload(action))
        except ValueError as error:
            return self._refused(str(error))
        except OpenEnvError as error:
            if error.code != _INVALID_ACTION:
                raise
            return self._refused(str(error))
        reward = float(data.get("reward") or 0.0)
        self._return += reward
        self._last = self._shown(data)
        return self._last, reward, bool(data.get("done")), False, self._info(data)

    def close(self) -> None:
        """Ends the session."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(ConnectionClosed, OSError):
                connection.send(json.dumps({"type": "close"}))
            connection.close()

    def _payload(self, action: str) -> dict[str, Any]:
        if self._action_field:
            return self._action | {self._action_field: action}
        try:
            value = json.loads(action)
        except (ValueError, RecursionError):
            raise ValueError("the text is no JSON") from None
        if not isinstance(value, dict):
            raise ValueError("the text is JSON, but no object")
        return value | self._action

    def _refused(self, why: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._invalid_actions += 1
        return f"No action: {why}\n{self._last}", 0.0, False, False, self._info({})

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """One message and its answer.

        Raises:
            OpenEnvError: the server's error; the session is kept only after an invalid action.
            ConnectionClosed, OSError, TimeoutError: there is no answer; the connection is given up.
        """
        try:
            if self._connection is None:
                self._connection = connect(
                    self._url,
                    open_timeout=self._connect_timeout_s,
                    close_timeout=1.0,
                    max_size=_MAX_MESSAGE_BYTES,
                )
            # A server that refuses a session says why and closes it at once: that can be read even then.
            with contextlib.suppress(ConnectionClosed):
                self._connection.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._connection.recv(self._answer_timeout_s))
            if answer.get("type") != "observation":
                details = answer.get("data", {})
                raise OpenEnvError(str(details.get("code", answer.get("type"))), str(details.get("message", details)))
            return answer["data"]
        except OpenEnvError as error:
            if error.code != _INVALID_ACTION:
                self._abandon()
            raise
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Gives the connection up: an answer that comes late must not be taken for that of a later question."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _shown(self, data: Mapping[str, Any]) -> str:
        observation = data["observation"]
        if self._observation_field:
            if self._observation_field not in observation:
                raise KeyError(
                    f"an observation has the fields {sorted(observation)}, not {self._observation_field!r}; "
                    "change observation_field"
                )
            observation = observation[self._observation_field]
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)

    def _info(self, data: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {
            "return": self._return,
            "turns": self._turns,
            "invalid_actions": self._invalid_actions,
        }
        if self._success_return is not None:
            own["success"] = self._return >= self._success_return
        return plain_info({"metadata": data.get("metadata") or {}}) | own
