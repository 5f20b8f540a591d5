import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.data_plane.stop_signals import StopSignals
from rollart_hpc.data_plane.worker import Attempt, Worker
from rollart_hpc.data_plane.worker_process import serve
from tests.builders import run_config

StartWorker = Callable[..., asyncio.Task[None]]


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


@pytest.fixture
async def view(bus: Bus) -> AsyncIterator[MemberView]:
    view = MemberView(bus)
    watching = asyncio.create_task(view.run())
    yield view
    watching.cancel()
    await asyncio.wait({watching})


@pytest.fixture
async def start_worker(server: NatsServer, tmp_path: Path) -> AsyncIterator[StartWorker]:
    """Serves workers here, each with its own connection: ``start_worker(cls, "name-0", rank=1)``."""
    config = run_config().model_dump(mode="json")
    attempt = Attempt(run_directory=str(tmp_path), number=1, bus=server.endpoint, store=None, config=config)
    tasks: list[asyncio.Task[None]] = []

    def start(worker_class: type[Worker], member_id: str, **changes: object) -> asyncio.Task[None]:
        own = Member(member_id=member_id, role=worker_class.role, hardware="cpu", node="n", pid=1)
        own = msgspec.structs.replace(own, **changes)
        tasks.append(asyncio.create_task(serve(worker_class, attempt, own, StopSignals())))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
