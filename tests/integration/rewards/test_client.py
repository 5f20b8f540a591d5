"""The reward client against an HTTP server that fails in every way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollart_hpc.errors import RewardFault
from rollart_hpc.rewards.client import RewardClient
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
LOCAL = Score(reward=-1.0)
REMOTE = Score(reward=0.5, success=True, metrics={"progress": 1.0})


class Endpoint:
    """Answers each request by the next of ``answers``, the last one again and again; remembers the requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[Callable[[], Awaitable[web.StreamResponse]]] = []
        self.requests: list[tuple[bytes, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((await request.read(), request.headers["Idempotency-Key"]))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer()

    def client(self, **settings: float) -> RewardClient:
        return RewardClient({"task": self.url}, score_locally, **settings)  # pyright: ignore[reportArgumentType]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint("")
    app = web.Application()
    app.router.add_post("/score", endpoint.handle)
    async with TestServer(app) as server:
        endpoint.url = str(server.make_url("/score"))
        yield endpoint


async def score_locally(task: str, episode: Episode) -> Score:
    assert (task, episode) == ("task", EPISODE)
    return LOCAL


def answer(
    body: bytes = msgspec.json.encode(REMOTE), status: int = 200, headers: dict[str, str] | None = None
) -> Callable[[], Awaitable[web.StreamResponse]]:
    async def respond() -> web.StreamResponse:
        return web.Response(body=body, status=status, headers=headers)

    return respond


async def hang() -> web.StreamResponse:
    await asyncio.sleep(5)
    return web.Response()


async def test_the_endpoint_gets_the_episode_and_gives_the_score(endpoint: Endpoint) -> None:
    endpoint.answers = [answer(), answer(b'{"reward": 1}')]
    async with endpoint.client() as client:
        assert await client.score("task", EPISODE) == REMOTE
        assert await client.score("task", EPISODE) == Score(reward=1.0)
        assert client.paths_taken == {"serverless": 2}
    assert msgspec.json.decode(endpoint.requests[0][0], type=Episode) == EPISODE
    assert endpoint.requests[0][1] != endpoint.requests[1][1]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_what_may_pass_is_tried_again_with_the_same_key(endpoint: Endpoint, status: int) -> None:
    endpoint.answers = [answer(b"", status), answer(b"", status), answer()]
    async with endpoint.client() as client:
        assert await client.score("task", EPISODE) == REMOTE
    assert len(endpoint.requests) == 3
    assert len({key for _, key in endpoint.requests}) == 1


@pytest.mark.parametrize(
    "failure",
    [
        answer(b"", 400),
        answer(b'{"errorMessage": "boom", "reward": 0.0}', headers={"X-Fc-Error-Type": "FunctionError"}),
        answer(b'{"reward": "much"}'),
        answer(b'{"reward": null}'),
        answer(b"no JSON"),
        answer(b'{"reward": 1e999}'),
        answer(b'{"reward": NaN}'),
    ],
    ids=["status 400", "function error", "text", "null", "no JSON", "infinite", "NaN"],
)
async def test_what_will_not_pass_goes_to_the_local_path_at_once(
    endpoint: Endpoint, failure: Callable[[], Awaitable[web.StreamResponse]]
) -> None:
    endpoint.answers = [failure]
    async with endpoint.client() as client:
        assert await client.score("task", EPISODE) == LOCAL
        assert client.paths_taken == {"fallback": 1}
        assert endpoint.url in client.last_failure
    assert len(endpoint.requests) == 1


async def test_a_hanging_endpoint_costs_no_more_than_the_deadline(endpoint: Endpoint) -> None:
    endpoint.answers = [hang]
    async with endpoint.client(deadline_s=0.3, attempt_timeout_s=0.1) as client:
        async with asyncio.timeout(1):
            assert await client.score("task", EPISODE) == LOCAL
    assert len(endpoint.requests) >= 2


async def test_a_pause_longer_than_the_deadline_is_not_waited_for(endpoint: Endpoint) -> None:
    endpoint.answers = [answer(b"", 429, {"Retry-After": "60"})]
    async with endpoint.client() as client, asyncio.timeout(1):
        assert await client.score("task", EPISODE) == LOCAL


async def test_an_endpoint_that_keeps_failing_is_left_alone_until_it_is_tried_once(endpoint: Endpoint) -> None:
    endpoint.answers = [answer(b"", 400)]
    async with endpoint.client(breaker_failures=3, breaker_open_s=0.2) as client:
        for _ in range(10):
            assert await client.score("task", EPISODE) == LOCAL
        assert len(endpoint.requests) == 3
        await asyncio.sleep(0.25)
        endpoint.answers = [answer()]
        assert await client.score("task", EPISODE) == REMOTE
        assert await client.score("task", EPISODE) == REMOTE


async def test_an_absent_endpoint_falls_back(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/score"
    async with RewardClient({"task": url}, score_locally, deadline_s=0.3) as client:
        assert await client.score("task", EPISODE) == LOCAL


async def test_a_task_without_a_url_is_scored_locally_and_its_fault_is_not_hidden() -> None:
    async def fail(task: str, episode: Episode) -> Score:
        raise RewardFault("raised", "no idea")

    async with RewardClient({"task": None}, fail) as client:
        with pytest.raises(RewardFault, match="no idea"):
            await client.score("task", EPISODE)
        assert client.paths_taken == {"local": 1}
