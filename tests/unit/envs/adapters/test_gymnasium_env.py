import contextlib
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.envs.adapters.action_text import IllegalAction, read_action
from rollart_hpc.envs.adapters.gymnasium_env import GymnasiumEnv
from rollart_hpc.envs.adapters.plain_info import plain_info

LAKE = {"env_id": "FrozenLake-v1", "env_args": {"is_slippery": False}, "actions": ["left", "down", "right", "up"]}
WAY = ["down", "down", "right", "right", "down", "right"]
HERE = "tests.unit.envs.adapters.test_gymnasium_env"


class Recorder(gym.Env[Any, Any]):
    """Says what it got; with an info that cannot travel whole."""

    def __init__(self, space: gym.Space[Any], observation_space: gym.Space[Any]) -> None:
        self.action_space = space
        self.observation_space = observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {"options": options, "object": object(), "array": np.arange(3)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), np.float32(1), np.True_, False, {"got": repr(action), 3: 4}


def boxes() -> Recorder:
    spaces = gym.spaces.Dict({"a": gym.spaces.Discrete(1), "b": gym.spaces.Box(0, 0, (2, 2))})
    return Recorder(gym.spaces.Box(-1, 1, (2,)), spaces)


def pictures() -> Recorder:
    return Recorder(gym.spaces.Discrete(2), gym.spaces.Box(0, 255, (64, 64, 3), np.uint8))


def shout(observation: Any) -> str:
    return f"{observation.shape}!"


def parse_yes(text: str) -> int:
    if text not in ("yes", "no"):
        raise ValueError("say yes or no")
    return int(text == "yes")


def test_a_game_by_id_with_named_actions_is_played_to_its_end() -> None:
    lake = GymnasiumEnv(**LAKE, render=True)
    first, info = lake.reset(seed=0, task={})
    assert first.startswith("Answer with an action: expected one of left, down, right, up.\n")
    assert first.endswith("\n[S]FFF\nFHFH\nFFFH\nHFFG\n")
    assert info == {"prob": 1, "return": 0.0, "turns": 0, "illegal_actions": 0, "success": False}
    *_, last = (lake.step(f"so <answer>{word}</answer>") for word in WAY)
    assert last[1:4] == (1.0, True, False)
    assert last[4]["success"] is True
    lake.close()


def test_an_illegal_action_costs_the_turn_and_moves_nothing() -> None:
    lake = GymnasiumEnv(**LAKE, illegal_reward=-0.1, instructions="")
    assert lake.reset(seed=0, task={})[0] == "0"
    assert lake.step("down")[0] == "4"
    for nonsense in ("", "down down", "4", "-1", "\ud800", "x" * 100_000, "\\boxed{down", "\\boxed{}", "[" * 50_000):
        observation, reward, terminated, truncated, info = lake.step(nonsense)
        assert observation.startswith("No action: ")
        assert observation.endswith("expected one of left, down, right, up\n4")
        assert (reward, terminated, truncated) == (-0.1, False, False)
    assert info["illegal_actions"] == 9
    assert lake.step("\\boxed{ DOWN }")[0] == "8"


def test_the_same_seed_and_actions_give_the_same_episode_in_a_used_and_a_fresh_instance() -> None:
    def play(env: GymnasiumEnv, seed: int) -> list[Any]:
        return [env.reset(seed=seed, task={}), *(env.step(str(n % 2)) for n in range(9))]

    used = GymnasiumEnv(env_id="CartPole-v1")
    episodes = [play(used, seed) for seed in range(5)]
    assert [play(GymnasiumEnv(env_id="CartPole-v1"), seed) for seed in range(5)] == episodes
    assert len({str(episode) for episode in episodes}) == 5
    assert episodes[0][0][0].startswith("Answer with an action: expected a whole number from 0 to 1.\n0.0")


def test_a_factory_with_boxes_and_an_info_of_plain_values() -> None:
    env = GymnasiumEnv(factory=f"{HERE}:boxes", instructions="")
    observation, info = env.reset(seed=0, task={"level": 2})
    assert observation == "a: 0\nb: 0 0\n0 0"
    assert info == {"options": {"level": 2}, "array": [0, 1, 2], "return": 0.0, "turns": 0, "illegal_actions": 0}
    _, reward, terminated, _, info = env.step("0.5, -1")
    assert (reward, terminated, info["got"]) == (1.0, True, "array([ 0.5, -1. ], dtype=float32)")
    assert (
        env.step("2 0")[0] == "No action: '2 0'; expected 2 numbers from -1 to 1, separated by spaces\n" + observation
    )


def test_own_formatter_and_parser() -> None:
    env = GymnasiumEnv(factory=f"{HERE}:pictures", formatter=f"{HERE}:shout", parser=f"{HERE}:parse_yes")
    assert env.reset(seed=0, task={})[0] == "(64, 64, 3)!"
    assert env.step("yes")[4]["got"] == "1"
    assert env.step("perhaps")[0] == "No action: say yes or no\n(64, 64, 3)!"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "exactly one"),
        ({"env_id": "CartPole-v1", "factory": "a:b"}, "exactly one"),
        ({"env_id": "CartPole-v1", "actions": ["left"]}, "names of 1 actions"),
        ({"env_id": "Pendulum-v1", "actions": ["left"]}, "names of 1 actions"),
        ({"factory": f"{HERE}:pictures"}, "give a formatter"),
        ({"factory": "pictures"}, "expected module:attribute"),
    ],
)
def test_wrong_arguments_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymnasiumEnv(**args)


@pytest.mark.parametrize(
    ("space", "names", "text", "action"),
    [
        (gym.spaces.Discrete(3, start=5), ["a", "b", "c"], "B", 6),
        (gym.spaces.Discrete(3, start=5), [], "<answer>7</answer>", 7),
        (gym.spaces.Discrete(3, start=5), [], "2", None),
        (gym.spaces.Discrete(3), [], "1.5", None),
        (gym.spaces.Box(0, 1, (2, 2)), [], "[[0, 1], [1, 0]]", [[0, 1], [1, 0]]),
        (gym.spaces.Box(0, 1, (2,)), [], "(0; 1)", [0, 1]),
        (gym.spaces.Box(0, 1, (2,)), [], "0 nan", None),
        (gym.spaces.Box(0, 1, (2,)), [], "0 1.01", None),
        (gym.spaces.Box(-np.inf, np.inf, (2,)), [], "0 -1e30", [0, np.float32(-1e30)]),
        (gym.spaces.Box(-np.inf, np.inf, (2,)), [], "0 inf", None),
        (gym.spaces.Box(0, 1, (2,)), [], "0 1 0", None),
        (gym.spaces.MultiDiscrete([2, 3]), [], "1 2", [1, 2]),
        (gym.spaces.MultiDiscrete([2, 3]), [], "2 2", None),
        (gym.spaces.MultiDiscrete([2, 3]), [], "0.5 2", None),
        (gym.spaces.MultiBinary(3), [], "[1, 0, 1]", [1, 0, 1]),
        (gym.spaces.Text(4, charset="ab"), [], "abba", "abba"),
        (gym.spaces.Text(4, charset="ab"), [], "abc", None),
        (gym.spaces.Dict({"x": gym.spaces.Discrete(2)}), [], '{"x": 1}', {"x": 1}),
        (gym.spaces.Dict({"x": gym.spaces.Discrete(2)}), [], '{"y": 1}', None),
        (gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(0, 1, (1,))]), [], "[1, [0.5]]", (1, [0.5])),
    ],
)
def test_an_action_is_read_from_text(space: gym.Space[Any], names: Sequence[str], text: str, action: Any) -> None:
    if action is None:
        with pytest.raises(IllegalAction, match="expected"):
            read_action(text, space, names)
    else:
        read = read_action(text, space, names)
        assert space.contains(read)
        assert plain_info({"read": read}) == plain_info({"read": action})


@given(st.text())
def test_no_text_raises_anything_but_illegal_action(text: str) -> None:
    part = gym.spaces.Box(0, 1, (2,))
    for space in (gym.spaces.Discrete(2), part, gym.spaces.MultiBinary(2), gym.spaces.Dict({"x": part})):
        with contextlib.suppress(IllegalAction):
            assert space.contains(read_action(text, space, []))
