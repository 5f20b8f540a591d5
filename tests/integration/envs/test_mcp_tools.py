"""The adapter against a real server by the official library, over standard input and output and over HTTP."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn

from rollart_hpc.envs.adapters.mcp_tools import McpTools
from tests.integration.envs import mcp_server
from tests.live_processes import live_children

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
QUESTION = {"question": "What is 17 + 25?", "answer": "42"}


def tools(**args: Any) -> McpTools:
    return McpTools(command=SERVER, **args)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def servers() -> list[psutil.Process]:
    return [child for child in live_children() if SERVER[1] in child.cmdline()]


@pytest.fixture(scope="module")
def shelf() -> Iterator[McpTools]:
    env = tools(call_timeout_s=20, max_result_chars=200)
    yield env
    env.close()
    assert not servers()


def test_the_policy_sees_the_tools_calls_them_and_answers(shelf: McpTools) -> None:
    first, info = shelf.reset(seed=0, task=QUESTION)
    assert '"name": "add", "description": "Adds two whole numbers."' in first
    assert first.endswith("What is 17 + 25?")
    assert info == {"answer": "42", "turns": 0, "calls": 0, "failed_calls": 0, "final_answer": ""}
    assert shelf.step(f"I add. {call('add', a=17, b=25)}")[:4] == ("42", 0.0, False, False)
    assert shelf.step('```json\n{"name": "put", "arguments": {"book": "Emma"}}\n```')[0] == "Emma"
    assert shelf.step('{"name": "put", "arguments": {"book": "Ulysses"}}')[0] == "Emma, Ulysses"
    observation, _, terminated, _, info = shelf.step("It is \\boxed{42}")
    assert (observation, terminated, info["final_answer"]) == ("", True, "It is \\boxed{42}")
    assert (info["turns"], info["calls"], info["failed_calls"]) == (4, 3, 0)


def test_what_the_policy_does_wrong_is_an_observation_and_nothing_of_it_is_left_in_the_next_episode(
    shelf: McpTools,
) -> None:
    shelf.reset(seed=0, task=QUESTION)
    for text, answer in [
        ("<tool_call>{not json}</tool_call>", "no JSON"),
        ("<tool_call>", "no JSON"),
        ("<tool_call>[1]</tool_call>", "has the form"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "has the form"),
        (call("subtract", a=1), "no tool is named 'subtract'; expected one of"),
        (call("add", a="x", b=2), "a"),
        (call("add"), "a"),
        (call("misbehave", how="raise"), "misbehave"),
    ]:
        observation, reward, terminated, _, info = shelf.step(text)
        assert observation.startswith("Error: "), text
        assert answer in observation
        assert (reward, terminated) == (0.0, False)
    assert info["failed_calls"] == 8
    long = shelf.step(call("misbehave", how="x"))[0]
    assert long == f"{'x' * 100}\n[800 characters are left out]\n{'x' * 100}"
    shelf.step(call("put", book="Emma"))
    shelf.reset(seed=0, task=QUESTION)
    assert shelf.step(call("put", book="Ulysses"))[0] == "Ulysses"
    assert len(servers()) == 1


def test_a_server_by_url_is_used_over_http() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(mcp_server.server.streamable_http_app(), log_level="error"))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    serving.start()
    env = McpTools(url=f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", question="?")
    try:
        env.reset(seed=0, task={})
        assert env.step(call("add", a=1, b=2))[0] == "3"
        env.reset(seed=1, task={})
        assert env.step(call("add", a="x"))[0].startswith("Error: ")
        env.close()
    finally:
        server.should_exit = True
        serving.join()
    with pytest.raises(ConnectionError, match="cannot be reached"):
        env.reset(seed=0, task={})


def test_a_server_that_ends_or_hangs_is_a_fault() -> None:
    before = live_children()
    env = tools(call_timeout_s=0.5, tools=["misbehave"], question="?")
    first, _ = env.reset(seed=0, task={})
    assert "put" not in first
    with pytest.raises(TimeoutError, match="no answer within"):
        env.step(call("misbehave", how="hang"))
    env.reset(seed=0, task={})
    with pytest.raises(ConnectionError, match="gone"):
        env.step(call("misbehave", how="end"))
    env.close()
    silent = McpTools(command=[sys.executable, "-c", "import sys; sys.stdin.read()"], start_timeout_s=0.3, question="?")
    with pytest.raises(TimeoutError, match="not ready within"):
        silent.reset(seed=0, task={})
    ended = McpTools(command=["false"], question="?")
    with pytest.raises(ConnectionError, match="does not start"):
        ended.reset(seed=0, task={})
    assert live_children() == before


def test_a_server_dies_with_the_process_that_started_it() -> None:
    script = (
        "from rollart_hpc.envs.adapters.mcp_tools import McpTools\n"
        "import sys, psutil, time\n"
        "env = McpTools(command=sys.argv[1:], question='?')\n"
        "env.reset(seed=0, task={})\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, *SERVER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        server = psutil.Process(int(owner.stdout.readline()))
        server.suspend()  # It cannot see that its input has ended.
        owner.kill()
    assert not psutil.wait_procs([server], timeout=5)[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "exactly one"),
        ({"command": ["x"], "url": "http://x"}, "exactly one"),
        ({"command": "python server.py"}, "list of words"),
        ({"command": ["no-such-program"]}, "no program"),
    ],
)
def test_a_wrong_server_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        McpTools(**args)


def test_a_task_without_a_question_and_an_unknown_tool_are_refused(shelf: McpTools) -> None:
    with pytest.raises(ValueError, match="question or problem or prompt"):
        shelf.reset(seed=0, task={"text": "?"})
    env = tools(tools=["nothing"], question="?")
    with pytest.raises(ValueError, match="expected some of \\['add', 'misbehave', 'put'\\]"):
        env.reset(seed=0, task={})
    env.close()
