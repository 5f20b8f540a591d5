import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, Membership, MemberView
from rollart_hpc.bus.mux import MuxServer
from rollart_hpc.control_plane import llm_proxy
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.env_manager import Playground
from rollart_hpc.control_plane.llm_proxy import LLMProxy
from rollart_hpc.control_plane.lockstep import Lockstep
from rollart_hpc.data_plane import requests
from rollart_hpc.data_plane.environment_host import EnvironmentHost
from rollart_hpc.data_plane.environment_process import EnvironmentSpec
from rollart_hpc.data_plane.reward_worker import RewardRequest, RewardResult
from rollart_hpc.types import Role
from rollart_hpc.warm_start.tokenizer import save_tokenizer
from tests.builders import run_config
from tests.integration.control_plane.scripted_engine import Script, ScriptedEngine, seen
from tests.integration.control_plane.table import Judge, SetUp, Table

StartEngine = Callable[..., Awaitable[ScriptedEngine]]
RewardScript = Callable[[RewardRequest], RewardResult | None]
StartReward = Callable[[str, RewardScript], Awaitable[list[RewardRequest]]]


@pytest.fixture
async def start_engine(bus: Bus, view: MemberView) -> AsyncIterator[StartEngine]:
    """Starts generation workers without a model: ``await start_engine("gen-0", script, hardware="H20")``."""
    engines: list[ScriptedEngine] = []

    async def start(member_id: str, script: Script, *, hardware: str = "H20") -> ScriptedEngine:
        engine = ScriptedEngine(bus, member_id, script, hardware=hardware)
        engines.append(engine)
        await engine.start(view)
        return engine

    yield start
    for engine in engines:
        engine.serving.cancel()
    if engines:
        await asyncio.wait([engine.serving for engine in engines])


@pytest.fixture
async def start_reward(bus: Bus, view: MemberView) -> AsyncIterator[StartReward]:
    """``await start_reward("reward-0", script)``: a worker on the bus; gives the list of what it was asked."""
    serving: list[asyncio.Task[None]] = []

    async def started(member_id: str, script: RewardScript) -> list[RewardRequest]:
        asked: list[RewardRequest] = []

        def receive(inbox: str, batch: list[RewardRequest], aborts: list[int]) -> None:
            asked.extend(batch)
            for request in batch:
                if (result := script(request)) is not None:
                    server.answer(inbox, result)

        server: MuxServer[RewardRequest, RewardResult] = MuxServer(bus, member_id, RewardRequest, receive)
        serving.append(asyncio.create_task(server.run()))
        await asyncio.sleep(0)
        await bus.nc.flush()
        member = Member(member_id=member_id, role=Role.REWARD, hardware="cpu", node="n", pid=1)
        await seen(view, member_id, member, Membership(bus, member).join())
        return asked

    yield started
    for task in serving:
        task.cancel()
    if serving:
        await asyncio.wait(serving)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that end are noticed at once; children find the tests' environments."""
    monkeypatch.setattr(requests, "_SWEEP_EVERY_S", 0.02)
    monkeypatch.setattr(llm_proxy, "_AFTER_REFUSAL_S", 0.0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.fixture
def set_up(bus: Bus, view: MemberView, tmp_path: Path, quick: None) -> SetUp:
    """``async with set_up(task={...}, rollout={...}, max_context=64, turns=2)``: the rest goes to the environment."""
    save_tokenizer(tmp_path, max_length=64)

    @asynccontextmanager
    async def opened(
        environment: str = "Light",
        *,
        task: dict[str, Any] | None = None,
        rollout: dict[str, Any] | None = None,
        max_context: int = 512,
        deterministic: bool = False,
        judge: Judge | None = None,
        **args: Any,
    ) -> AsyncIterator[Table]:
        section = {
            "environment": f"tests.integration.control_plane.environments:{environment}",
            "environment_args": args,
            "max_turns": 9,
            "max_new_tokens": 8,
            "tag": "lake",
            **(task or {}),
        }
        config = run_config(tasks={"a": section}, **(rollout or {}))
        model = config.model.model_copy(update={"max_context": max_context})
        generation = config.generation.model_copy(update={"deterministic": deterministic})
        config = config.model_copy(update={"model": model, "generation": generation})
        timeout_s = config.rollout.generate_timeout_s
        proxy = LLMProxy(bus, "environment-0", view, lambda _: None, timeout_s=timeout_s)
        running = asyncio.create_task(proxy.run())
        judge = judge or Judge()
        async with EnvironmentHost({"a": EnvironmentSpec.of_task(config.tasks["a"])}, max_children=2) as host:
            chat = ChatFormat(tmp_path)
            playground = Playground(
                worker="environment-0",
                config=config,
                chat=chat,
                host=host,
                proxy=proxy,
                rewards=judge,
                lockstep=Lockstep(config.rollout.schedule),
            )
            yield Table(playground, judge)
        running.cancel()
        await asyncio.wait({running})

    return opened
