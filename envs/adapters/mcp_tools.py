"""The tools of an MCP server (modelcontextprotocol.io) as an environment: the policy calls them to answer a question.

The first observation lists the tools. A text that holds a call gets the tool's result; a text without one is the final
answer and ends the episode. A call is a JSON object, alone, in a ```json block, or in Hermes' tags:

  <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>

Invariants:
  - What a tool refuses, an unknown tool and JSON that cannot be read are observations. A server that does not start,
    ends or does not answer is raised.
  - A server by command is started anew for every episode and dies with this process; what one episode did to its state
    is not seen by the next. One by URL keeps whatever it keeps.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rollart_hpc.envs.adapters.mcp_session import McpSession, ToolFailure
from rollart_hpc.envs.adapters.tool_call import CallSyntaxError, find_call
from rollart_hpc.interfaces import EnvironmentProperties

INSTRUCTIONS = (
    "You can call these tools, one in each answer:\n\n{tools}\n\n"
    'To call one, write <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call> and nothing after it. '
    "An answer without a call is your final one.\n\n"
)
_QUESTION_FIELDS = ("question", "problem", "prompt")
_DIES_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "sys.exit(1) if os.getppid() != int(sys.argv[1]) else os.execvp(sys.argv[2], sys.argv[2:])\n"
)
"""Run by Python before the server's command, in one process: the kernel ends it with the thread that started it."""


class McpTools:
    """A question, and the tools of one server to answer it with.

    The last ``info`` says ``turns``, ``calls``, ``failed_calls``, ``final_answer``, and of the task's row all that is
    not the question: a reward function finds the right answer there.

    Args:
        command: of a server that speaks over its standard input and output, as a list of words.
        url: of a server that speaks HTTP (streamable); instead of ``command``.
        env: environment variables for the command; of this process's own it sees PATH, HOME and the like only.
        question: for tasks without a data set.
        tools: names of those that the policy may call; all if absent.
        max_result_chars: of a tool's result; a longer one is cut in the middle.
        call_timeout_s: for each answer of the server.
        start_timeout_s: for the server's start.
        instructions: text before the question, ``{tools}`` stands for their list.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(thread_safe=True)

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str = "",
        env: Mapping[str, str] | None = None,
        question: str = "",
        tools: Sequence[str] | None = None,
        max_result_chars: int = 10_000,
        call_timeout_s: float = 60.0,
        start_timeout_s: float = 60.0,
        instructions: str = INSTRUCTIONS,
    ) -> None:
        if bool(command) == bool(url):
            raise ValueError(f"got command {list(command)} and url {url!r}; expected exactly one of them")
        if isinstance(command, str):
            raise ValueError(
                f"command is the text {command!r}; expected a list of words, as in ['python', 'server.py']"
            )
        if command and shutil.which(command[0]) is None:
            raise ValueError(f"command names {command[0]!r}, which is no program on this machine's PATH")
        self._command = list(command)
        self._url = url
        self._env = dict(env or {})
        self._question = question
        self._allowed = None if tools is None else set(tools)
        self._max_result_chars = max_result_chars
        self._call_timeout_s = call_timeout_s
        self._start_timeout_s = start_timeout_s
        self._instructions = instructions
        self._session: McpSession | None = None

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Connects to the server, starts it first if it is a command, and shows its tools and the question.

        Args:
            seed: not used; a server has no notion of it.
            task: a row with ``question`` (or ``problem``, ``prompt``); its other fields go into the info.
        """
        question = self._question_of(task)
        self.close()
        self._session = McpSession(self._server(), self._start_timeout_s)
        tools = [tool for tool in self._session.tools if self._allowed is None or tool.name in self._allowed]
        if self._allowed is not None and len(tools) < len(self._allowed):
            known = sorted(tool.name for tool in self._session.tools)
            raise ValueError(f"tools names {sorted(self._allowed)}; expected some of {known}")
        self._names = {tool.name for tool in tools}
        self._turns = self._calls = self._failed_calls = 0
        listed = "\n".join(
            json.dumps(
                {"name": tool.name, "description": tool.description or "", "arguments": tool.input_schema},
                ensure_ascii=False,
            )
            for tool in tools
        )
        rest = {name: value for name, value in task.items() if name not in _QUESTION_FIELDS}
        return self._instructions.replace("{tools}", listed) + question, rest | self._info("")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Calls the tool that the text names, or ends the episode. The reward is always 0: score the final answer."""
        self._turns += 1
        try:
            call = find_call(action)
        except CallSyntaxError as error:
            return self._failed(f"Error: {error}")
        if call is None:
            return "", 0.0, True, False, self._info(action)
        if call.name not in self._names:
            return self._failed(f"Error: no tool is named {call.name[:80]!r}; expected one of {sorted(self._names)}")
        assert self._session is not None
        try:
            result = self._session.call(call.name, call.arguments, self._call_timeout_s)
        except ToolFailure as failure:
            return self._failed(f"Error: {self._cut(str(failure))}")
        self._calls += 1
        return self._cut(result), 0.0, False, False, self._info("")

    def close(self) -> None:
        """Ends the connection, and the server if it is a command."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _question_of(self, task: Mapping[str, Any]) -> str:
        for name in _QUESTION_FIELDS:
            if name in task:
                return str(task[name])
        if not self._question:
            raise ValueError(
                f"a task has the fields {sorted(task)}; expected one named {' or '.join(_QUESTION_FIELDS)}"
            )
        return self._question

    def _server(self) -> Any:
        if self._url:
            return self._url
        from mcp import StdioServerParameters  # noqa: PLC0415

        args = ["-I", "-c", _DIES_WITH_PARENT, str(os.getpid()), *self._command]
        return StdioServerParameters(command=sys.executable, args=args, env=self._env)

    def _failed(self, observation: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._failed_calls += 1
        return observation, 0.0, False, False, self._info("")

    def _cut(self, text: str) -> str:
        if len(text) <= self._max_result_chars:
            return text
        half = self._max_result_chars // 2
        return f"{text[:half]}\n[{len(text) - 2 * half} characters are left out]\n{text[len(text) - half :]}"

    def _info(self, final_answer: str) -> dict[str, Any]:
        return {
            "turns": self._turns,
            "calls": self._calls,
            "failed_calls": self._failed_calls,
            "final_answer": final_answer,
        }
