"""The reward client against an HTTP server that fails in every way."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollart_hpc.config.serverless import ServerlessSection
from rollart_hpc.errors import ConfigError, RewardFault
from rollart_hpc.rewards import client as client_module
from rollart_hpc.rewards.client import RewardClient
from rollart_hpc.rewards.payload import PayloadWriter, Played, Reference, Shape, TokenEpisode, read_body
from rollart_hpc.rewards.signature import refusal
from rollart_hpc.types import Episode, FinishReason, Score, Turn

EPISODE = Episode(
    task="task",
    seed=3,
    turns=[Turn(observation="7+5=?", action="12", reward=1.0, finish_reason=FinishReason.STOP)],
    final_observation="",
    terminated=True,
    truncated=False,
    info={"success": True},
)
PLAYED = Played(trajectory_id="t-1", token_ids=np.array([7, 8], np.int32), loss_mask=np.array([0, 1], np.uint8))
LOCAL = Score(reward=-1.0)
REMOTE = Score(reward=0.5, success=True, metrics={"progress": 1.0})
CLIENT_SETTINGS = {"deadline_s", "breaker_failures", "breaker_open_s"}
Answer = Callable[[], Awaitable[web.StreamResponse]]


class Endpoint:
    """Answers each request by the next of ``answers``, the last one again and again; remembers the requests."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Answer] = []
        self.requests: list[tuple[bytes, str]] = []
        self.headers: list[dict[str, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((await request.read(), request.headers["Idempotency-Key"]))
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer()

    def client(self, *, shape: Shape = "text", root: Path = Path(), url: str = "", **settings: Any) -> RewardClient:
        of_client = {key: settings.pop(key) for key in CLIENT_SETTINGS & settings.keys()}
        section = ServerlessSection(url=url or self.url, **settings)
        payloads = PayloadWriter(root, "environment-0")
        return RewardClient({"task": section}, score_locally, payloads=payloads, shapes={"task": shape}, **of_client)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/score", endpoint.handle)
    async with TestServer(app) as server:
        endpoint.url = str(server.make_url("/score"))
        yield endpoint


async def scored(client: RewardClient, played: Played | None = None) -> Score:
    """The score without the cause of a fallback, which must be there when there was one."""
    score = await client.score(EPISODE, played)
    causes = {name for name in score.metrics if name.startswith("fallback_")}
    assert len(causes) == (score.reward == LOCAL.reward)
    metrics = {name: value for name, value in score.metrics.items() if name not in causes}
    return msgspec.structs.replace(score, metrics=metrics)


async def score_locally(task: str, episode: Episode) -> Score:
    assert (task, episode) == ("task", EPISODE)
    return LOCAL


def answer(
    body: bytes = msgspec.json.encode(REMOTE), status: int = 200, headers: dict[str, str] | None = None
) -> Answer:
    async def respond() -> web.StreamResponse:
        return web.Response(body=body, status=status, headers=headers)

    return respond


def function_error(kind: str) -> Answer:
    return answer(b'{"errorMessage": "boom", "reward": 0.0}', headers={"X-Fc-Error-Type": kind})


async def hang() -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def test_the_endpoint_gets_the_episode_and_gives_the_score(endpoint: Endpoint) -> None:
    endpoint.answers = [answer(), answer(b'{"reward": 1}')]
    async with endpoint.client() as client:
        assert await scored(client, PLAYED) == REMOTE
        assert await scored(client) == Score(reward=1.0)
        assert client.paths_taken == {"serverless": 2}
    assert msgspec.json.decode(endpoint.requests[0][0], type=Episode) == EPISODE
    assert endpoint.requests[0][1] != endpoint.requests[1][1]


async def test_the_key_is_that_of_trajectory_and_episode_whoever_asks(endpoint: Endpoint) -> None:
    endpoint.answers = [answer()]
    other = msgspec.structs.replace(EPISODE, seed=4)
    second = Played(trajectory_id="t-2", token_ids=PLAYED.token_ids, loss_mask=PLAYED.loss_mask)
    for episode, played in ((EPISODE, PLAYED), (EPISODE, PLAYED), (EPISODE, second), (other, PLAYED)):
        async with endpoint.client() as client:
            await client.score(episode, played)
    first, again, of_another, of_other_words = [key for _, key in endpoint.requests]
    assert first == again
    assert len({first, of_another, of_other_words}) == 3


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_what_may_pass_is_tried_again_with_the_same_key(endpoint: Endpoint, status: int) -> None:
    endpoint.answers = [answer(b"", status), answer(b"", status), answer()]
    async with endpoint.client() as client:
        assert await scored(client) == REMOTE
    assert len(endpoint.requests) == 3
    assert len({key for _, key in endpoint.requests}) == 1


@pytest.mark.parametrize(
    ("failure", "cause", "num_requests"),
    [
        (answer(b"", 400), "status 400", 1),
        (answer(b"", 302, {"Location": "/score"}), "status 302", 1),
        (function_error("HandledInvocationError"), "function error", 1),
        (function_error("UnhandledInvocationError"), "function error", 2),
        (answer(b"{}", 500, {"X-Fc-Error-Type": "HandledError"}), "function error", 1),
        (answer(b'{"reward": "much"}'), "bad_value", 1),
        (answer(b'{"reward": null}'), "bad_value", 1),
        (answer(b"no JSON"), "bad_value", 1),
        (answer(b'{"reward": 1e999}'), "bad_value", 1),
        (answer(b'{"reward": NaN}'), "bad_value", 1),
        (answer(b'{"reward": 1e300}'), "bad_value", 1),
        (answer(b'{"reward": 1, "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "bad_value", 1),
        (answer(b"", 400, {"Retry-After": "a, 1 Jan 99999999999999999999 0:0:0"}), "status 400", 1),
        (answer(b" " * (2 << 20)), "bad_value", 1),
    ],
    ids=["400", "302", "function raised", "function died", "raised, 500", "text", "null", "no JSON", "infinite", "NaN",
         "no float32", "deep", "no date", "endless"],
)  # fmt: skip
async def test_what_will_not_pass_goes_to_the_local_path(
    endpoint: Endpoint, failure: Answer, cause: str, num_requests: int
) -> None:
    endpoint.answers = [failure]
    async with endpoint.client() as client:
        assert await scored(client) == LOCAL
        assert (client.paths_taken, client.causes) == ({"fallback": 1}, {cause: 1})
        assert endpoint.url in client.last_failure
    assert len(endpoint.requests) == num_requests


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
async def test_a_pause_that_the_endpoint_asks_for_is_made(endpoint: Endpoint, as_date: bool) -> None:
    async def ask_for_a_pause() -> web.StreamResponse:
        retry_after = formatdate(time.time() + 1.6, usegmt=True) if as_date else "0.6"
        return web.Response(status=429, headers={"Retry-After": retry_after})

    endpoint.answers = [ask_for_a_pause, answer()]
    begin = time.monotonic()
    async with endpoint.client(fallback_after_s=5) as client:
        assert await scored(client) == REMOTE
    assert 0.5 < time.monotonic() - begin < 10


async def test_a_pause_longer_than_the_deadline_is_not_made(endpoint: Endpoint) -> None:
    endpoint.answers = [answer(b"", 429, {"Retry-After": "60"})]
    async with endpoint.client() as client, asyncio.timeout(10):
        assert await scored(client) == LOCAL
        assert client.causes == {"throttled": 1}


async def test_an_endpoint_that_hangs_costs_its_patience_once_and_is_used_again_when_it_recovers(
    endpoint: Endpoint,
) -> None:
    endpoint.answers = [hang]
    async with endpoint.client(fallback_after_s=0.8, breaker_open_s=0.3) as client:
        begin = time.monotonic()
        calls = [asyncio.create_task(scored(client)) for _ in range(50)]
        await asyncio.sleep(0.3)
        calls += [asyncio.create_task(scored(client)) for _ in range(50)]
        assert await asyncio.gather(*calls) == [LOCAL] * 100
        assert client.causes == {"no result for anybody": 100}
        assert 0.3 < time.monotonic() - begin < 10, "those who came later fall back with the first"
        begin, num_requests = time.monotonic(), len(endpoint.requests)
        assert await scored(client) == LOCAL
        assert client.causes["left alone"] == 1
        endpoint.answers = [answer()]
        while await scored(client) == LOCAL:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert time.monotonic() - begin < 10, "probed, and closed"
        assert await scored(client) == REMOTE
        assert len(endpoint.requests) <= num_requests + 4, "one probe at a time"


async def test_a_slow_endpoint_that_gives_results_is_waited_for(endpoint: Endpoint) -> None:
    async def slow() -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return web.json_response({"reward": 0.5, "success": True, "metrics": {"progress": 1.0}})

    endpoint.answers = [answer(), answer(), answer(), answer(), slow]
    async with endpoint.client(fallback_after_s=0.3) as client:
        late = asyncio.create_task(scored(client))
        await asyncio.sleep(0)
        endpoint.answers.insert(0, slow)
        for _ in range(4):
            await asyncio.sleep(0.1)
            assert await scored(client) == REMOTE
        assert await late == REMOTE
        assert await scored(client) == LOCAL, "alone it is too slow"


async def test_an_endpoint_that_keeps_failing_is_left_alone(endpoint: Endpoint) -> None:
    endpoint.answers = [answer(b"", 400)]
    async with endpoint.client(breaker_failures=3, breaker_open_s=60) as client:
        for _ in range(10):
            assert await scored(client) == LOCAL
        assert len(endpoint.requests) == 3
        assert client.causes == {"status 400": 3, "left alone": 7}


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/score", "http://no-such-host.invalid/score"])
async def test_an_absent_endpoint_falls_back_and_is_told_once(
    unused_tcp_port: int, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Endpoint().client(url=url.format(port=unused_tcp_port), fallback_after_s=0.5) as client:
        async with asyncio.timeout(10):
            assert [await scored(client) for _ in range(20)] == [LOCAL] * 20
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    # When the name's lookup takes longer than the patience, that is another cause, told once too.
    assert len(told) == len({"no result for anybody" in text for text in told}) > 0


async def test_a_second_request_beside_a_late_one_has_the_same_key_and_wins(endpoint: Endpoint) -> None:
    endpoint.answers = [hang, answer()]
    async with endpoint.client(hedge_after_s=0.1) as client:
        async with asyncio.timeout(10):
            assert await scored(client) == REMOTE
        (function,) = client.functions
        assert (function.num_requests, function.num_hedges, function.num_hedges_won) == (2, 1, 1)
    assert len({key for _, key in endpoint.requests}) == 1


async def test_a_late_answer_counts_when_the_request_beside_it_fails(endpoint: Endpoint) -> None:
    async def late() -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.json_response(msgspec.to_builtins(REMOTE))

    endpoint.answers = [late, answer(b"", 400)]
    async with endpoint.client(hedge_after_s=0.1) as client:
        assert await scored(client) == REMOTE
    assert len(endpoint.requests) == 2


async def test_every_try_is_signed_by_the_secret_of_the_environment(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCORE_SECRET", "s3cret")
    monkeypatch.setenv("SCORE_TOKEN", "t0ken")
    endpoint.answers = [answer(b"", 503), answer()]
    async with endpoint.client(secret_env="SCORE_SECRET", bearer_env="SCORE_TOKEN") as client:
        assert await scored(client) == REMOTE
    for headers, (body, _) in zip(endpoint.headers, endpoint.requests, strict=True):
        assert refusal(headers, body, bearer="t0ken", secret="s3cret") == ""
        assert "does not sign" in refusal(headers, body + b" ", bearer="t0ken", secret="s3cret")
        assert "does not sign" in refusal(headers, body, bearer=None, secret="another")
        assert "right bearer token" in refusal(headers, body, bearer="other", secret=None)
        old = headers | {"X-Rollart-Timestamp": str(int(time.time()) - 301)}
        assert "at most 300 from now" in refusal(old, body, bearer=None, secret="s3cret")
    monkeypatch.delenv("SCORE_SECRET")
    with pytest.raises(ConfigError, match="environment variable SCORE_SECRET is not set; export it"):
        endpoint.client(secret_env="SCORE_SECRET")


async def test_a_payload_over_the_limit_is_never_sent_and_no_failure_of_the_endpoint(endpoint: Endpoint) -> None:
    endpoint.answers = [answer()]
    async with endpoint.client(max_body_mb=0.0001, breaker_failures=1) as client:
        assert [await scored(client) for _ in range(3)] == [LOCAL] * 3
        assert client.causes == {"payload too large": 3}
        assert (await client.score(EPISODE)).metrics == {"fallback_payload_too_large": 1.0}
        assert "tasks.NAME.reward_payload" in client.last_failure
    assert endpoint.requests == []


async def test_tokens_and_references_stand_for_the_words(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answers = [answer()]
    async with endpoint.client(shape="tokens") as client:
        assert await scored(client, PLAYED) == REMOTE
        assert await scored(client) == LOCAL
        assert client.causes == {"no payload": 1}
    in_tokens = read_body(endpoint.requests[0][0], None)
    assert in_tokens == TokenEpisode(
        task="task", seed=3, token_ids=[7, 8], loss_mask=[0, 1], terminated=True, truncated=False, info=EPISODE.info
    )

    read: list[Episode | TokenEpisode] = []

    async def read_it() -> web.StreamResponse:
        read.append(read_body(endpoint.requests[-1][0], tmp_path))
        return await answer()()

    endpoint.answers = [read_it]
    async with endpoint.client(shape="reference", root=tmp_path) as client:
        assert await scored(client, PLAYED) == REMOTE
    assert read == [EPISODE]
    body = endpoint.requests[-1][0]
    reference = msgspec.json.decode(body, type=Reference)
    assert not (tmp_path / reference.reference).exists(), "it is there until the call ends"
    (tmp_path / reference.reference).write_bytes(b"x" * reference.size_bytes)
    outside = msgspec.json.encode(msgspec.structs.replace(reference, reference="../x"))
    for wrong, root, said in (
        (body, tmp_path, "is not what it should be"),
        (body, None, "start it with --references"),
        (body, tmp_path / "other", "cannot be read: No such file"),
        (outside, tmp_path, "leads out of the directory"),
        (b"{}", None, "expected an Episode"),
    ):
        with pytest.raises(ValueError, match=said):
            read_body(wrong, root)


@pytest.mark.parametrize("shape", ["text", "tokens", "reference"])
async def test_an_episode_that_is_no_json_goes_to_the_local_path(
    endpoint: Endpoint, shape: Shape, tmp_path: Path
) -> None:
    async def local(task: str, episode: Episode) -> Score:
        return LOCAL

    endpoint.answers = [answer()]
    # What an environment may report, and the bus carries.
    episode = msgspec.structs.replace(EPISODE, info={"seen": {True: 1, (0, 1): 2}})
    payloads = PayloadWriter(tmp_path, "environment-0")
    section = ServerlessSection(url=endpoint.url)
    async with RewardClient({"task": section}, local, payloads=payloads, shapes={"task": shape}) as client:
        score = await client.score(episode, PLAYED)
    assert (score.reward, score.metrics) == (LOCAL.reward, LOCAL.metrics | {"fallback_no_payload": 1.0})
    assert not endpoint.requests


async def test_each_entry_of_one_url_keeps_its_own_settings(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_B", "b")
    endpoint.answers = [answer()]
    sections = {
        "a": ServerlessSection(url=endpoint.url),
        "b": ServerlessSection(url=endpoint.url, bearer_env="TOKEN_B"),
        "c": ServerlessSection(url=endpoint.url),
    }
    async with RewardClient(sections, score_locally, payloads=PayloadWriter(Path(), "environment-0")) as client:
        for task in sections:
            await client.score(msgspec.structs.replace(EPISODE, task=task))
        assert len(client.functions) == 2, "equal entries are one endpoint"
    assert [headers.get("Authorization") for headers in endpoint.headers] == [None, "Bearer b", None]


async def test_no_more_requests_than_allowed_are_made_at_the_same_time(endpoint: Endpoint) -> None:
    at_once: list[int] = [0, 0]

    async def counted() -> web.StreamResponse:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0.02)
        at_once[0] -= 1
        return await answer()()

    endpoint.answers = [counted]
    async with endpoint.client(max_concurrent=4) as client:
        assert await asyncio.gather(*(scored(client) for _ in range(20))) == [REMOTE] * 20
    assert at_once[1] == 4


async def test_a_task_without_a_url_is_scored_locally_and_its_fault_is_not_hidden() -> None:
    async def fail(task: str, episode: Episode) -> Score:
        raise RewardFault("raised", "no idea")

    async with RewardClient({}, fail, payloads=PayloadWriter(Path(), "w")) as client:
        with pytest.raises(RewardFault, match="no idea"):
            await client.score(EPISODE)
        assert client.paths_taken == {"local": 1}


async def test_a_cancelled_call_leaves_nothing_under_way(endpoint: Endpoint) -> None:
    endpoint.answers = [hang]
    async with endpoint.client(hedge_after_s=0.05) as client:
        before = asyncio.all_tasks()
        call = asyncio.create_task(scored(client))
        while len(endpoint.requests) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        ours = {task for task in asyncio.all_tasks() - before if client_module.__package__ in repr(task.get_coro())}
        assert not ours
