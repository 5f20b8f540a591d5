"""Policies with a plan play whole trajectories as a run does: environment host, sandbox and reward pool are real."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.env_manager import EnvManager, Playground
from rollart_hpc.control_plane.lockstep import Lockstep
from rollart_hpc.data_plane.environment_host import EnvironmentHost, EnvironmentSpec
from rollart_hpc.envs.swe.actions import SUBMIT
from rollart_hpc.envs.swe.instance import tiny_rows
from rollart_hpc.envs.webshop.expert import shopping
from rollart_hpc.rewards.local_pool import LocalRewardPool
from rollart_hpc.rewards.payload import Played
from rollart_hpc.types import Episode, FinishReason, GenerateRequest, GenerateResult, Score, Span, Ticket, Trajectory
from rollart_hpc.warm_start.tokenizer import END, START, build_byte_tokenizer, save_tokenizer
from tests.builders import run_config
from tests.integration.envs.repairs import solution

TASKS: dict[str, dict[str, Any]] = {
    "webshop": {
        "environment": "rollart_hpc.envs.webshop:WebShop",
        "reward": "rollart_hpc.reward_functions.webshop:score",
        "max_turns": 120,
    },
    "swe": {
        "environment": "rollart_hpc.envs.swe:SWE",
        "environment_args": {"command_timeout_s": 10.0, "max_commands": 8},
        "reward": "rollart_hpc.reward_functions.swe_tests:score",
        "max_turns": 8,
    },
}
Plan = Generator[str, str, None]
"""Yields actions, is sent the observation that follows."""


class Mind:
    """Stands where the LLMProxy does; it reads its prompts, and answers by a plan made of the first observation."""

    def __init__(self, plan: Callable[[str], Plan]) -> None:
        self._plan, self._acting = plan, None
        self._tokenizer = build_byte_tokenizer()

    async def generate(self, request: GenerateRequest, sticky: str | None) -> tuple[GenerateResult, str]:
        text = self._tokenizer.decode(np.frombuffer(request.token_ids, np.int32).tolist(), skip_special_tokens=False)
        observation = text.split(f"{START}user")[-1].split(END)[0]
        if self._acting is None:
            self._acting = self._plan(observation)
            action = next(self._acting)
        else:
            action = self._acting.send(observation)
        token_ids = np.asarray(self._tokenizer.encode(action + END, add_special_tokens=False).ids, np.int32)
        logprobs = np.zeros(len(token_ids), np.float32).tobytes()
        spans = (Span(0, 0, len(token_ids)),)
        return GenerateResult(1, token_ids.tobytes(), logprobs, spans, FinishReason.STOP), "gen-0"

    def next_request_id(self) -> int:
        return 1

    def hardware_of(self, sticky: str | None) -> str:
        return "cpu"


class Pool(LocalRewardPool):
    async def score(self, task: str | Episode, episode: Episode | Played) -> Score:  # type: ignore[override]
        assert isinstance(task, Episode)
        return await super().score(task.task, task)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    config = run_config(tasks=TASKS)
    return config.model_copy(update={"model": config.model.model_copy(update={"max_context": 1 << 20})})


@asynccontextmanager
async def opened(config: RunConfig, directory: Path) -> AsyncIterator[Callable[..., Any]]:
    save_tokenizer(directory, max_length=1 << 20, tokenizer=build_byte_tokenizer())
    specs = {name: EnvironmentSpec.of_task(task) for name, task in config.tasks.items()}
    functions = {name: task.reward for name, task in config.tasks.items()}
    async with EnvironmentHost(specs, max_children=4) as host, Pool(functions, timeout_s=60.0) as rewards:

        async def play(task: str, plan: Callable[[str], Plan], seed: int = 0) -> Trajectory:
            playground = Playground(
                worker="environment-0",
                config=config,
                chat=ChatFormat(directory),
                host=host,
                proxy=Mind(plan),  # type: ignore[arg-type]
                rewards=rewards,
                lockstep=Lockstep(config.rollout.schedule),
            )
            ticket = Ticket(trajectory_id=f"{task}-{seed}", group_id="g", task=task, seed=seed, admitted_version=0)
            return await EnvManager(playground, ticket).play()

        yield play


def saying(*actions: str) -> Callable[[str], Plan]:
    def plan(_: str) -> Plan:
        yield from (action for action in actions)  # a generator, that can be sent observations

    return plan


def writing(files: dict[str, str]) -> list[str]:
    return [f"```bash\ncat >{path} <<'END'\n{text}END\n```" for path, text in files.items()]


async def test_policies_get_what_they_deserve(config: RunConfig, tmp_path: Path) -> None:
    submit = f"```bash\necho {SUBMIT}\n```"
    seed = next(index for index, row in enumerate(tiny_rows()) if row["repo"] == "tiny/slug")
    always_passing = "def pytest_runtest_call(item):\n    item.obj = lambda *_: None\n"
    async with opened(config, tmp_path) as play:
        shoppers = [play("webshop", shopping, seed) for seed in range(4)]
        cheats = [
            play("webshop", saying("click[buy now]", "buy now", "click[reward 1.0]", *["search[]"] * 117)),
            play("swe", saying(submit), seed),
            play("swe", saying(*writing({"conftest.py": always_passing}), submit), seed),
            play("swe", saying("```bash\nkill -9 -1; exit 0\n```", submit), seed),
        ]
        engineer = play("swe", saying(*writing(solution("slug")), submit), seed)
        played = await asyncio.gather(*shoppers, engineer, *cheats)
    assert [one.failure_detail for one in played] == [""] * 9
    assert [one.reward for one in played] == [1.0] * 5 + [0.0] * 4
    assert [one.success for one in played] == [True] * 5 + [False] * 4
