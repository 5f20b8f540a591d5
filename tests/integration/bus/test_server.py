import socket
from pathlib import Path

import psutil
import pytest

from rollart_hpc.bus import server
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.errors import BusError


@pytest.fixture
def taken_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


async def test_a_port_that_is_lost_to_another_process_is_replaced(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
):
    right, offered = server.free_port, [taken_port]
    monkeypatch.setattr(server, "free_port", lambda host="127.0.0.1": offered.pop() if offered else right(host))
    running = await NatsServer.start(log=tmp_path / "log")
    bus = await Bus.connect(running.endpoint, "test")
    await bus.close()
    await running.stop()


async def test_a_port_that_stays_taken_is_an_error_with_the_log(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "free_port", lambda host="127.0.0.1": taken_port)
    with pytest.raises(BusError, match="address already in use"):
        await NatsServer.start(log=tmp_path / "log")


async def test_stopping_leaves_neither_process_nor_store(tmp_path: Path):
    running = await NatsServer.start(log=tmp_path / "log")
    pid, store = running.process.pid, running._store.path
    await running.stop()
    assert not psutil.pid_exists(pid)
    assert not store.exists()


async def test_a_server_that_does_not_become_ready_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho thinking\nexec sleep 60")
    program.chmod(0o700)
    monkeypatch.setattr(server, "server_binary", lambda: program)
    monkeypatch.setattr(server, "_READY_DEADLINE_S", 0.5)
    with pytest.raises(BusError, match=r"(?s)not ready within 0\.5 s.*thinking"):
        await NatsServer.start(log=tmp_path / "log")
    assert "sleep" not in [child.name() for child in psutil.Process().children(recursive=True)]
