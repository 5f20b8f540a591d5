"""A served reward function in a process of its own, called by the client and by hand."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from rollart_hpc.config.serverless import ServerlessSection
from rollart_hpc.rewards.client import RewardClient
from rollart_hpc.rewards.payload import PayloadWriter
from rollart_hpc.rewards.signature import sha256, signed_headers
from rollart_hpc.types import Episode, FinishReason, Score, Turn

USER_CODE = """
import asyncio, os, pathlib
from rollart_hpc.types import Score

async def score(episode, *, scale=1.0, log=None):
    action = episode.turns[0].action
    if log:
        with open(log, "a") as file:
            file.write(action + "\\n")
    if action == "raise":
        raise ValueError("no idea")
    if action == "die":
        os._exit(9)
    if action == "hang":
        while True:
            pass
    await asyncio.sleep(0.2 if action == "wait" else 0)
    return Score(reward=scale * episode.seed, success=True)
"""
READY_S = 30


@dataclass
class Server:
    url: str
    process: asyncio.subprocess.Process
    log: Path

    def calls(self) -> list[str]:
        """Actions for which the function ran."""
        return self.log.read_text().split() if self.log.exists() else []

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), 10)


Serve = Callable[..., Awaitable[Server]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    (tmp_path / "my_reward.py").write_text(USER_CODE)
    started: list[Server] = []

    async def start(*options: str, function: str = "my_reward", **environment: str) -> Server:
        log = tmp_path / "calls.txt"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rollart_hpc.cli.main", "reward", "serve", function, "--port", "0", *options,
            "--args", msgspec.json.encode({"scale": 2.0, "log": str(log)}).decode(),
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}", **environment},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        started.append(Server(line.decode().strip().rpartition(" ")[2], process, log))
        return started[-1]

    yield start
    for server in started:
        await server.stop()


def episode(action: str = "", seed: int = 3) -> Episode:
    turn = Turn(observation="o", action=action, reward=0.0, finish_reason=FinishReason.STOP)
    return Episode(
        task="task", seed=seed, turns=[turn], final_observation="", terminated=True, truncated=False, info={}
    )


async def never(task: str, episode: Episode) -> Score:
    return Score(reward=-1.0)


def client(server: Server, root: Path = Path(), shape: Any = "text", **settings: Any) -> RewardClient:
    endpoint = ServerlessSection(url=server.url, **settings)
    return RewardClient(
        {"task": endpoint}, never, payloads=PayloadWriter(root, "w"), shapes={"task": shape}, breaker_failures=99
    )


async def post(server: Server, body: bytes, **headers: str) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(server.url, data=body, headers={name.replace("_", "-"): value for name, value in headers.items()})
        as response,
    ):  # fmt: skip
        return response.status, await response.json(), response.headers


async def test_the_client_s_calls_are_scored_while_others_raise_die_and_hang(serve: Serve) -> None:
    server = await serve("--timeout", "0.5")
    async with client(server, fallback_after_s=20) as rewards:
        bad = [asyncio.create_task(rewards.score(episode(action))) for action in ("raise", "die", "hang")]
        scores = await asyncio.gather(*(rewards.score(episode("fine", seed)) for seed in range(100)))
        assert scores == [Score(reward=2.0 * seed, success=True) for seed in range(100)]
        raised, died, hung = await asyncio.gather(*bad)
        assert [score.metrics for score in (raised, died, hung)] == [{"fallback_function_error": 1.0}] * 3
    calls = server.calls()
    assert calls.count("raise") == 1, "what raised would raise again"
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}health") as response:
        health = await response.json()
    # What dies and what hangs may pass, and is tried twice; nobody else has a fault by them.
    assert (health["status"], health["scored"], health["faults"]) == ("ok", 100, 5)


async def test_calls_of_one_key_are_computed_once(serve: Serve) -> None:
    server = await serve()
    body = msgspec.json.encode(episode("wait"))
    answers = await asyncio.gather(*(post(server, body, Idempotency_Key="k") for _ in range(5)))
    answers += [await post(server, body, Idempotency_Key="k")]
    assert [(status, score["reward"]) for status, score, _ in answers] == [(200, 6.0)] * 6
    assert server.calls() == ["wait"]
    status, error, _ = await post(server, msgspec.json.encode(episode("other")), Idempotency_Key="k")
    assert (status, "came with another body" in error["errorMessage"]) == (422, True)
    bad = msgspec.json.encode(episode("raise"))
    for _ in range(2):
        status, error, headers = await post(server, bad, Idempotency_Key="bad")
        assert (status, error["errorType"], headers["X-Fc-Error-Type"]) == (500, "raised", "HandledError")
        assert "ValueError: no idea" in error["errorMessage"]
    assert server.calls() == ["wait", "raise", "raise"]


async def test_only_who_has_token_and_secret_is_served_and_only_what_it_can_read(serve: Serve, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    server = await serve(
        "--token-env", "TOKEN", "--secret-env", "SECRET", "--references", str(shared), "--max-body-mb", "0.01",
        TOKEN="t", SECRET="s",
    )  # fmt: skip
    good = msgspec.json.encode(episode())
    nonsense, key = b'{"task": "task"}', "k"
    assert (await post(server, good))[0] == 401
    assert (await post(server, good, Authorization="Bearer t"))[0] == 401
    assert (await post(server, good, **signed_headers("s", key, sha256(good)), Idempotency_Key=key))[0] == 401
    headers = {"Authorization": "Bearer t", "Idempotency_Key": key}
    status, error, _ = await post(server, nonsense, **headers, **signed_headers("s", key, sha256(nonsense)))
    assert (status, "expected an Episode" in error["errorMessage"]) == (400, True)
    assert (await post(server, b"x" * 20_000, **headers))[0] == 413
    os.environ |= {"TOKEN": "t", "SECRET": "s"}
    try:
        async with client(server, shared, "reference", bearer_env="TOKEN", secret_env="SECRET") as rewards:
            large = msgspec.structs.replace(episode(), final_observation="x" * 1_000_000)
            assert (await rewards.score(large)).reward == 6.0
    finally:
        del os.environ["TOKEN"], os.environ["SECRET"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"info": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"reference": "a\\u0000b", "sha256": "", "size_bytes": 1}', "is no path"),
    ],
    ids=["deep", "no path"],
)
async def test_a_body_that_nothing_can_read_is_refused(serve: Serve, tmp_path: Path, body: bytes, said: str) -> None:
    server = await serve("--references", str(tmp_path))
    status, error, _ = await post(server, body)
    assert (status, said in error["errorMessage"]) == (400, True)


async def test_a_number_that_no_message_takes_is_a_fault_of_its_call(serve: Serve) -> None:
    server = await serve()
    large = msgspec.json.encode(msgspec.structs.replace(episode(), info={"count": 2**70}))
    status, error, headers = await post(server, large)
    assert (status, error["errorType"], headers["X-Fc-Error-Type"]) == (500, "unsendable", "HandledError")


async def test_a_time_of_thousands_of_digits_is_refused(serve: Serve) -> None:
    server = await serve("--secret-env", "SECRET", SECRET="s")
    assert (await post(server, b"", X_Rollart_Timestamp="1" * 5000))[0] == 401


async def test_a_signal_lets_what_is_under_way_end(serve: Serve) -> None:
    server = await serve()
    waiting = asyncio.create_task(post(server, msgspec.json.encode(episode("wait"))))
    while "wait" not in server.calls():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    assert (await waiting)[0] == 200
    assert await server.stop() == 0


async def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    async def refused(*arguments: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rollart_hpc.cli.main", "reward", "serve", *arguments, "--port", "0",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
        return process.returncode, said.decode()

    shipped = "rollart_hpc.reward_functions.arithmetic"
    attempts: list[tuple[list[str], str]] = [
        (["no_such_module"], "no module named 'no_such_module'"),
        ([shipped, "--args", '{"x": 1}'], "unexpected keyword argument 'x'"),
        ([shipped, "--token-env", "NOT_SET"], "NOT_SET"),
        (["os.path:join"], "is not async"),
        ([shipped, "--host", "a..b"], "--host a..b --port 0: "),
        ([shipped, "--timeout", "inf"], "--timeout"),
        ([shipped, "--max-body-mb", "inf"], "--max-body-mb"),
    ]
    for arguments, expected in attempts:
        code, said = await refused(*arguments)
        assert (code, expected in said, "Traceback" in said) == (2, True, False), said
