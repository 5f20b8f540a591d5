import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from tests.integration.control_plane.scripted_engine import Script, ScriptedEngine

StartEngine = Callable[..., Awaitable[ScriptedEngine]]


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
