"""An environment of verifiers (github.com/PrimeIntellect-ai/verifiers): rows of its data set, its turns, its rubric.

For environments of the kind that its documentation calls v0, which `load_environment` of a package returns. What is
used of one, by name, since the library need not be installed here:

  get_dataset()                   rows with ``prompt`` (text, or chat messages) or ``question``; ``answer``, ``info``
  setup_state(state)              optional; prepares an episode
  env_response(messages, state)   optional; what follows the policy's text: messages, text, or (messages, state)
  is_completed(state)             optional; also with (messages, state), as older ones have it
  max_turns                       optional; an environment without `env_response` has one turn
  init_state(input, ...)          optional; makes the state, a mapping, of a row
  rubric                          ``funcs`` with ``weights`` and ``class_objects``, or ``rubrics`` whose rewards add up

Each may be a coroutine function. Its own rollout loop, its clients and its tools are not used: the policy is ours.

Invariants:
  - The rubric is asked once, when the environment says that the episode is over; its reward is that of the last turn.
    What a reward function raises is raised here, where verifiers itself would take it for a reward of 0.
  - An episode is the row that the seed, or the task's data set, names.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, ClassVar

from rollart_hpc.envs.adapters.entry_point import load
from rollart_hpc.envs.adapters.plain_info import plain_info
from rollart_hpc.interfaces import EnvironmentProperties

Message = dict[str, Any]
_GROUP_PARAMETERS = {"states", "prompts", "completions", "answers", "tasks", "infos"}


class VerifiersTask:
    """One episode at a time of an environment of verifiers.

    The last ``info`` says ``success``, ``metrics`` (of the rubric's functions), ``turns``, and ``answer`` of the row.

    Args:
        environment: ``module:function`` that returns it, as in ``my_env:load_environment``.
        environment_args: arguments of that function.
        success_reward: reward from which on an episode is a success.
        max_turns: ends the episode and scores it, if verifiers' own limit is none or larger; the limit of the task's
            section should be no smaller, since an episode that is cut there is never scored.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(shares_process=True, replayable=True)

    def __init__(
        self,
        *,
        environment: str,
        environment_args: Mapping[str, Any] | None = None,
        success_reward: float = 1.0,
        max_turns: int = 0,
    ) -> None:
        self._env = load(environment)(**(environment_args or {}))
        if not hasattr(self._env, "rubric"):
            raise ValueError(f"{environment} returned {type(self._env).__name__}; expected one with a rubric")
        if getattr(self._env, "oai_tools", None) or getattr(self._env, "tool_defs", None):
            raise ValueError(f"{environment} has tools, which need a tool-calling API; see the adapter mcp_tools")
        self._success_reward = success_reward
        if grouped := _grouped(self._env.rubric):
            raise ValueError(f"{environment} scores groups of episodes in {grouped}; only functions of one can be used")
        limits = [limit for limit in (max_turns, getattr(self._env, "max_turns", -1)) if limit > 0]
        self._max_turns = min(limits, default=0) if hasattr(self._env, "env_response") else 1
        self._rows: Sequence[Mapping[str, Any]] | None = None
        self._runner = asyncio.Runner()

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Starts the episode of a row: the task's fields if there are any, else that of the data set."""
        row = deepcopy(dict(task or self._row(seed)))
        system_prompt = getattr(self._env, "system_prompt", None)
        row["prompt"] = _messages(row["prompt"]) if "prompt" in row else _question(row, system_prompt)
        self._state = self._new_state(row)
        if setup := getattr(self._env, "setup_state", None):
            self._state = self._call(setup, self._state) or self._state
        return _shown(self._state["prompt"]), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Adds the policy's text to the conversation and lets the environment answer, or the rubric score."""
        state = self._state
        said = [{"role": "assistant", "content": action}]
        state["trajectory"].append(
            {
                "prompt": list(state["prompt"]) + list(state["completion"]),
                "completion": said,
                "response": None,
                "tokens": None,
                "reward": None,
                "advantage": None,
                "is_truncated": False,
                "trajectory_id": state["trajectory_id"],
                "extras": {},
            }
        )
        state["completion"] += said
        state["turn"] += 1
        if self._is_over():
            return self._scored("")
        answered = self._call(self._env.env_response, state["prompt"] + state["completion"], state)
        if isinstance(answered, tuple):
            answered, self._state = answered
            state = self._state
        answer = _messages(answered)
        state["completion"] += answer
        is_over = self._is_over()
        if state.get("final_env_response") or is_over:
            return self._scored(_shown(answer))
        return _shown(answer), 0.0, False, False, self._info()

    def close(self) -> None:
        """Ends the event loop in which the environment's coroutines ran."""
        self._runner.close()

    def _row(self, seed: int) -> Mapping[str, Any]:
        if self._rows is None:
            self._rows = self._env.get_dataset()
        if not len(self._rows):
            raise ValueError("the data set of the verifiers environment is empty")
        return self._rows[seed % len(self._rows)]

    def _new_state(self, row: Mapping[str, Any]) -> Any:
        """The environment's own kind of state where it makes one, with all the fields that its code may read."""
        defaults = _default_state(row)
        make = getattr(self._env, "init_state", None)
        if make is None or "input" not in inspect.signature(make).parameters:
            return defaults
        state = self._call(make, input=row, client=None, model="policy", sampling_args=None)
        for name, value in defaults.items():
            if state.get(name) is None:
                state[name] = value
        return state

    def _is_over(self) -> bool:
        state = self._state
        is_over = self._max_turns > 0 and state["turn"] >= self._max_turns
        # It is asked even then: it also frees what the episode holds.
        if completed := getattr(self._env, "is_completed", None):
            arguments = [state] if len(_positional(completed)) < 2 else [state["prompt"] + state["completion"], state]
            is_over = bool(self._call(completed, *arguments)) or is_over
        return is_over

    def _scored(self, observation: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._state["is_completed"] = True
        self._state["metrics"] = {}
        reward = self._state["reward"] = self._score(self._env.rubric)
        return observation, reward, True, False, self._info() | {"success": reward >= self._success_reward}

    def _score(self, rubric: Any) -> float:
        """The weighted sum of the rubric's functions, which take what they need by name."""
        state = self._state
        if not hasattr(rubric, "funcs") or hasattr(rubric, "rubrics"):
            return sum(self._score(part) for part in rubric.rubrics)
        known = {name: state.get(name) for name in ("prompt", "completion", "answer", "info", "task")}
        known |= {"state": state, "parser": getattr(rubric, "parser", None)} | getattr(rubric, "class_objects", {})
        total = 0.0
        weights = getattr(rubric, "weights", None) or [1.0] * len(rubric.funcs)
        for function, weight in zip(rubric.funcs, weights, strict=True):
            parameters = inspect.signature(function).parameters
            takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
            given = known if takes_all else {name: value for name, value in known.items() if name in parameters}
            score = float(self._call(function, **given))
            state["metrics"][function.__name__] = score
            total += score * weight
        return total

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            value = function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value

        return self._runner.run(call())

    def _info(self) -> dict[str, Any]:
        state = self._state
        info = {"success": False, "turns": state["turn"], "metrics": state["metrics"] or {}, "answer": state["answer"]}
        return plain_info(info)


def _default_state(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that verifiers' documentation lists, for code that reads or writes them."""
    info = row.get("info", {})
    return {
        "input": row,
        "prompt": row["prompt"],
        "answer": row.get("answer", ""),
        "info": json.loads(info) if isinstance(info, str) else info,
        "task": row.get("task", "default"),
        "example_id": row.get("example_id", 0),
        "completion": [],
        "trajectory": [],
        "trajectory_id": uuid.uuid4().hex,
        "turn": 0,
        "responses": [],
        "client": None,
        "model": "policy",
        "sampling_args": None,
        "is_completed": False,
        "is_truncated": False,
        "final_env_response": None,
        "reward": None,
        "metrics": None,
        "error": None,
        "timing": SimpleNamespace(start_time=time.time()),
    }


def _question(row: Mapping[str, Any], system_prompt: str | None) -> list[Message]:
    if "question" not in row:
        raise ValueError(f"a row has the fields {sorted(row)}; expected prompt or question")
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, {"role": "user", "content": str(row["question"])}]


def _messages(value: Any) -> list[Message]:
    """Chat messages; a text is one of the user's."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return [message if isinstance(message, dict) else dict(message) for message in value or ()]


def _shown(messages: Sequence[Message]) -> str:
    """What the policy sees of messages: their texts, marked where they are the assistant's (examples in a prompt)."""
    texts = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "\n".join(part.get("text", "") for part in content if part.get("type") == "text")
        texts.append(f"Assistant: {content}" if message.get("role") == "assistant" else content)
    return "\n\n".join(texts)


def _grouped(rubric: Any) -> list[str]:
    """Names of the functions that want several episodes at once, which verifiers knows by their parameters."""
    parts = [name for part in getattr(rubric, "rubrics", []) for name in _grouped(part)]
    functions = getattr(rubric, "funcs", [])
    return parts + [one.__name__ for one in functions if _GROUP_PARAMETERS & set(inspect.signature(one).parameters)]


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in inspect.signature(function).parameters.values() if parameter.kind in kinds]
