from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.server import NatsServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    running = await NatsServer.start(log=tmp_path / "nats.log")
    yield running
    await running.stop()


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    connection = await Bus.connect(server.endpoint, "test")
    yield connection
    await connection.close()
