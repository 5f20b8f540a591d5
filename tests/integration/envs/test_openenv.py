"""The adapter against a server of the same protocol over real sockets."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import ConnectionClosed

from rollart_hpc.envs.adapters.openenv import OpenEnv, OpenEnvError
from tests.integration.envs.openenv_server import CountingServer, counting_server


@pytest.fixture
def server() -> Iterator[tuple[CountingServer, str]]:
    with counting_server() as served:
        yield served


def text_env(url: str, **args: object) -> OpenEnv:
    return OpenEnv(url=url, action_field="message", observation_field="text", success_return=1.0, **args)


def test_an_episode_is_played_in_one_session_and_used_again(server: tuple[CountingServer, str]) -> None:
    game, url = server
    env = text_env(url, reset_args={"mode": "a"})
    assert env.reset(seed=2, task={"level": 3})[0] == "total 2"
    assert env.step("four")[:4] == ("total 6", 0.0, False, False)
    observation, reward, terminated, truncated, info = env.step("four")
    assert (observation, reward, terminated, truncated) == ("total 10", 1.0, True, False)
    assert info == {"return": 1.0, "turns": 2, "invalid_actions": 0, "success": True, "metadata": {"parity": 0}}
    assert env.reset(seed=1, task={})[0] == "total 1"
    assert game.num_active == 1
    assert game.resets == [{"mode": "a", "level": 3, "seed": 2}, {"mode": "a", "seed": 1}]
    env.close()
    with game.ended:
        assert game.ended.wait_for(lambda: game.num_active == 0, timeout=5)
    assert game.num_closed_by_message == 1


def test_json_actions_and_whole_observations(server: tuple[CountingServer, str]) -> None:
    env = OpenEnv(url=server[1])
    assert env.reset(seed=0, task={})[0] == '{"total": 0, "text": "total 0"}'
    assert env.step('{"message": "abc"}')[0] == '{"total": 3, "text": "total 3"}'
    for nonsense in ("", "hello", "[1]", "[" * 100_000, '{"message": 1}', '{"other": "x"}', "\ud800"):
        observation, reward, terminated, _, info = env.step(nonsense)
        assert observation.startswith("No action: ")
        assert observation.endswith('{"total": 3, "text": "total 3"}')
        assert (reward, terminated) == (0.0, False)
    assert info["invalid_actions"] == 7
    assert env.step('{"message": "abc"}')[0] == '{"total": 6, "text": "total 6"}'
    env.close()


def test_errors_of_the_server_are_raised_and_the_next_reset_connects_anew(server: tuple[CountingServer, str]) -> None:
    env = text_env(server[1], answer_timeout_s=0.5)
    for message, error in (("raise", OpenEnvError), ("leave", ConnectionClosed), ("silence", TimeoutError)):
        env.reset(seed=0, task={})
        with pytest.raises(error):
            env.step(message)
        assert env.reset(seed=3, task={})[0] == "total 3"
    env.close()


def test_a_session_that_the_server_ended_between_episodes_is_replaced(server: tuple[CountingServer, str]) -> None:
    env = text_env(server[1])
    env.reset(seed=0, task={})
    # The answer to this is the end of the session, which only the next question meets.
    env._connection.send('{"type": "close"}')
    assert env.reset(seed=4, task={})[0] == "total 4"
    env.close()


def test_a_full_server_and_an_absent_one_are_errors() -> None:
    with counting_server(capacity=1) as (_, url):
        first, second = text_env(url), text_env(url)
        first.reset(seed=0, task={})
        for _ in range(20):
            with pytest.raises(OpenEnvError, match="CAPACITY_REACHED"):
                second.reset(seed=0, task={})
        first.close()
        second.close()
    with pytest.raises(OSError):
        text_env(url).reset(seed=0, task={})
    with pytest.raises(ValueError, match="as in http"):
        OpenEnv(url="localhost:8000")


def test_instances_are_independent_in_threads(server: tuple[CountingServer, str]) -> None:
    def play(seed: int) -> list[str]:
        env = text_env(server[1])
        texts = [env.reset(seed=seed, task={})[0], *(env.step("x")[0] for _ in range(20))]
        env.close()
        return texts

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(play, range(32))) == [[f"total {seed + n}" for n in range(21)] for seed in range(32)]
