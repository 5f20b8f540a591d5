"""What an environment package of verifiers gives, without the library: the parts of its v0 that it documents.

Names, signatures and order of calls are those of its documentation and of `Rubric`, `SingleTurnEnv` and `MultiTurnEnv`.
"""

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

Messages = list[dict[str, Any]]


class State(dict[str, Any]):
    """Forwards the fields of its input."""

    INPUT_FIELDS = ("prompt", "answer", "info")

    def __getitem__(self, name: str) -> Any:
        if name in self.INPUT_FIELDS and name in dict.get(self, "input", {}):
            return dict.__getitem__(self, "input")[name]
        return dict.__getitem__(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


class Rubric:
    def __init__(self, funcs: list[Callable[..., Any]], weights: list[float] | None = None) -> None:
        self.funcs = funcs
        self.weights = weights or [1.0] * len(funcs)
        self.class_objects: dict[str, Any] = {}

    async def score_rollout(self, state: State) -> None:
        raise AssertionError("it takes errors of the functions for a reward of 0")


class RubricGroup(Rubric):
    def __init__(self, rubrics: list[Rubric]) -> None:
        super().__init__([])
        self.rubrics = rubrics


class MultiTurnEnv:
    def __init__(self, dataset: list[dict[str, Any]], rubric: Rubric, max_turns: int = -1) -> None:
        self.dataset = dataset
        self.rubric = rubric
        self.max_turns = max_turns
        self.cleaned: list[str] = []

    def get_dataset(self, n: int = -1, seed: int | None = None) -> list[dict[str, Any]]:
        return self.dataset

    async def init_state(
        self,
        input: dict[str, Any],  # noqa: A002
        client: Any,
        model: str,
        sampling_args: Any = None,
    ) -> State:
        state = State(input=dict(input))
        if isinstance(input.get("info"), str):
            state["input"]["info"] = json.loads(input["info"])
        state.update(client=client, model=model, sampling_args=sampling_args, is_completed=False, trajectory=[])
        state.update(trajectory_id=uuid.uuid4().hex, reward=None, metrics=None, error=None, final_env_response=None)
        state.update(timing={"start_time": time.time()}, completion=None)
        return state

    async def is_completed(self, state: State, **kwargs: Any) -> bool:
        reached = 0 < self.max_turns <= len(state["trajectory"])
        if reached or state["final_env_response"] is not None:
            state["timing"]["total_ms"] = time.time() - state["timing"]["start_time"]
            self.cleaned.append(state["trajectory_id"])
            return True
        return False


class SingleTurnEnv(MultiTurnEnv):
    def __init__(self, dataset: list[dict[str, Any]], rubric: Rubric) -> None:
        super().__init__(dataset, rubric, max_turns=1)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        raise NotImplementedError("a single turn has no answer")


class Guess(MultiTurnEnv):
    """Higher or lower; the secret is the row's answer."""

    async def setup_state(self, state: State) -> None:
        state["guesses"] = []

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        assert messages[-1]["role"] == "assistant"
        guess, secret = messages[-1]["content"], state["answer"]
        state["guesses"].append(guess)
        if guess == secret:
            state["final_env_response"] = [{"role": "user", "content": f"Yes, {secret}."}]
            return state["final_env_response"]
        hint = "higher" if guess < secret else "lower"
        return [{"role": "user", "content": f"It is {hint} than {guess}."}]


class LegacyEcho:
    """As environments of 0.1.4 and before have it: messages first, the state returned, no coroutines."""

    rubric = Rubric([lambda completion, **_: float(len(completion))])
    max_turns = -1

    def get_dataset(self) -> list[dict[str, Any]]:
        return [{"prompt": "Speak.", "answer": ""}]

    def is_completed(self, messages: Messages, state: dict[str, Any], **kwargs: Any) -> bool:
        return messages[-1]["content"] == "stop"

    def env_response(self, messages: Messages, state: dict[str, Any], **kwargs: Any) -> tuple[Messages, Any]:
        return [{"role": "user", "content": messages[-1]["content"]}], state | {"echoed": True}


async def correct(completion: Messages, answer: str) -> float:
    return float(answer in completion[-1]["content"])


def brevity(completion: Messages, state: State, limit: int) -> float:
    assert state["trajectory"]
    return float(len(completion[-1]["content"]) <= limit)


def broken(completion: Messages) -> float:
    raise RuntimeError("the judge is away")


def diversity(completions: list[Messages]) -> list[float]:
    return [0.0 for _ in completions]


def load_sums() -> SingleTurnEnv:
    correctness = Rubric([correct])
    style = Rubric([brevity], [0.5])
    style.class_objects["limit"] = 5
    system = {"role": "system", "content": "Be brief."}
    rows = [
        {"prompt": [system, {"role": "user", "content": f"{n}+{n}=?"}], "answer": str(2 * n), "info": '{"n": 1}'}
        for n in range(1, 4)
    ]
    return SingleTurnEnv(rows, RubricGroup([correctness, style]))


def load_guess(max_turns: int = -1) -> Guess:
    async def found(state: State) -> float:
        return float(state["answer"] in state["guesses"])

    def num_turns(state: State) -> float:
        return float(len(state["trajectory"]))

    return Guess([{"question": "1-9?", "answer": "7"}], Rubric([found, num_turns], [1.0, 0.0]), max_turns)


def load_broken() -> SingleTurnEnv:
    return SingleTurnEnv([{"question": "?", "answer": ""}], Rubric([broken]))


def load_grouped() -> SingleTurnEnv:
    return SingleTurnEnv([], RubricGroup([Rubric([diversity])]))


def load_tools() -> SingleTurnEnv:
    env = SingleTurnEnv([], Rubric([]))
    env.oai_tools = [{"type": "function"}]  # type: ignore[attr-defined]
    return env
