"""Any environment of gymnasium as a game of text: by id or by a factory, with a formatter and a parser for text.

Invariants:
  - An action that is not one of the environment's costs the turn and moves nothing; the policy is told what was
    expected and sees the last observation again.
  - Randomness is the environment's own, seeded by `reset`. gymnasium's environments keep to that; one that does not
    would differ when a trajectory is rebuilt, which is noticed there, and the trajectory starts again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rollart_hpc.envs.adapters.action_text import IllegalAction, expected, read_action
from rollart_hpc.envs.adapters.entry_point import load
from rollart_hpc.envs.adapters.plain_info import plain_info
from rollart_hpc.interfaces import EnvironmentProperties

MAX_ELEMENTS = 256
"""Numbers of an observation that are written out; larger ones need a formatter."""
_COLOURED = re.compile("\x1b\\[[0-9;]+m([^\x1b]*)\x1b\\[0?m")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class GymnasiumEnv:
    """One environment of gymnasium.

    The last ``info`` says ``return``, ``turns``, ``illegal_actions`` and, where a success is defined, ``success``.

    Args:
        env_id: gymnasium's id, as in ``CartPole-v1`` or ``my_package:Maze-v0``.
        factory: ``module:function`` that returns an environment; instead of ``env_id``.
        env_args: arguments of `gymnasium.make` or of the factory.
        actions: names of a discrete space's actions, in order.
        parser: ``module:function`` from the policy's text to an action; raises ValueError for an illegal one.
        render: shows what ``render()`` returns, for environments whose ``render_mode`` is ``ansi``; what it colours
            stands in brackets.
        formatter: ``module:function`` from the environment's observation to text.
        illegal_reward: of an action that is not one of the environment's.
        success_return: sum of rewards from which on an episode is a success; the reward threshold of the id if absent.
        instructions: text before the first observation; what an action looks like, if absent.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(shares_process=True, replayable=True)

    def __init__(
        self,
        *,
        env_id: str = "",
        factory: str = "",
        env_args: Mapping[str, Any] | None = None,
        actions: Sequence[str] = (),
        parser: str = "",
        render: bool = False,
        formatter: str = "",
        illegal_reward: float = 0.0,
        success_return: float | None = None,
        instructions: str | None = None,
    ) -> None:
        if bool(env_id) == bool(factory):
            raise ValueError(f"got env_id {env_id!r} and factory {factory!r}; expected exactly one of them")
        args = dict(env_args or {})
        if render:
            args.setdefault("render_mode", "ansi")
        self._env: gym.Env[Any, Any] = load(factory)(**args) if factory else gym.make(env_id, **args)
        space = self._env.action_space
        self._names = list(actions)
        if self._names and not (isinstance(space, gym.spaces.Discrete) and len(self._names) == space.n):
            raise ValueError(f"got names of {len(self._names)} actions, {self._names}; the action space is {space}")
        self._parse: Callable[[str], Any] = load(parser) if parser else self._read
        self._format: Callable[[Any], str] = load(formatter) if formatter else observation_text
        self._is_rendered = render
        if not render and not formatter:
            _check_size(self._env.observation_space)
        self._illegal_reward = illegal_reward
        threshold = self._env.spec.reward_threshold if self._env.spec else None
        self._success_return = threshold if success_return is None else success_return
        if instructions is None:
            instructions = "" if parser else f"Answer with an action: {expected(space, self._names)}.\n"
        self._instructions = instructions

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Starts an episode; the fields of a task, if there are any, are gymnasium's ``options``."""
        observation, info = self._env.reset(seed=seed, options=dict(task) or None)
        self._return, self._turns, self._illegal_actions = 0.0, 0, 0
        self._last = self._shown(observation)
        return self._instructions + self._last, self._info(info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes the action that the text names, or none."""
        self._turns += 1
        try:
            parsed = self._parse(action)
        except ValueError as error:
            self._illegal_actions += 1
            self._return += self._illegal_reward
            return f"No action: {error}\n{self._last}", self._illegal_reward, False, False, self._info({})
        observation, given, terminated, truncated, info = self._env.step(parsed)
        reward = float(given)
        self._return += reward
        self._last = self._shown(observation)
        return self._last, reward, bool(terminated), bool(truncated), self._info(info)

    def close(self) -> None:
        """Closes gymnasium's environment."""
        self._env.close()

    def _read(self, text: str) -> Any:
        return read_action(text, self._env.action_space, self._names)

    def _shown(self, observation: Any) -> str:
        if not self._is_rendered:
            return self._format(observation)
        picture = self._env.render()
        if not isinstance(picture, str):
            raise TypeError(f"render() gave {type(picture).__name__}; render = true needs the render_mode ansi")
        return _COLOUR.sub("", _COLOURED.sub(r"[\1]", picture))

    def _info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = {
            "return": self._return,
            "turns": self._turns,
            "illegal_actions": self._illegal_actions,
        }
        if self._success_return is not None:
            own["success"] = self._return >= self._success_return
        return plain_info(info) | own


def observation_text(observation: Any) -> str:
    """An observation in words: numbers with four digits, a matrix by rows, a mapping or tuple by lines."""
    if isinstance(observation, Mapping):
        return "\n".join(f"{name}: {observation_text(part)}" for name, part in observation.items())
    if isinstance(observation, tuple):
        return "\n".join(observation_text(part) for part in observation)
    if isinstance(observation, np.ndarray) and observation.ndim > 1:
        return "\n".join(observation_text(row) for row in observation)
    if isinstance(observation, np.ndarray):
        return " ".join(_number_text(number) for number in observation.reshape(-1))
    return _number_text(observation)


def _number_text(number: Any) -> str:
    return f"{number:.4g}" if isinstance(number, float | np.floating) else str(number)


def _check_size(space: gym.Space[Any]) -> None:
    size = 1
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        size = int(np.prod(space.shape))
    elif isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
        for part in parts:
            _check_size(part)
    if size > MAX_ELEMENTS:
        raise ValueError(
            f"an observation has {size} numbers, of {space}; give a formatter for more than {MAX_ELEMENTS}, or render"
        )


__all__ = ["GymnasiumEnv", "IllegalAction", "observation_text"]
