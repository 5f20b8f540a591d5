"""The services of an attempt: bus and weight store, children of the leader."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rollart_hpc.bus.server import MAX_PAYLOAD_BYTES, NatsServer
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.processes import ManagedProcess
from rollart_hpc.weights.server import MemoryOwner, MooncakeMaster

_BYTES = {"float32": 4, "bfloat16": 2}
_SPARE_VERSIONS = 4
"""One being uploaded and those that were read a moment ago, beyond those that are kept."""
_MIN_STORE_MB = 256
_BATCH_BYTES_PER_TOKEN = 20
_MAX_BATCH_BYTES = 4 << 30


class Services:
    """The running services; made by `run_services`."""

    def __init__(
        self,
        nats: NatsServer,
        master: MooncakeMaster,
        owner: MemoryOwner,
        start_owner: Callable[[], Awaitable[MemoryOwner]],
    ) -> None:
        self.nats, self.master, self.owner = nats, master, owner
        self._start_owner = start_owner

    @property
    def processes(self) -> list[ManagedProcess]:
        """Those of now."""
        return [self.nats.process, self.master.process, self.owner.process]

    async def bus_ended(self) -> tuple[ManagedProcess, int]:
        """Waits for the end of nats-server; the process and its exit code."""
        return self.nats.process, await self.nats.process.wait()

    async def store_ended(self) -> tuple[ManagedProcess, int]:
        """Waits for the end of either process of the weight store; that process and its exit code."""
        waits = {asyncio.ensure_future(one.wait()): one for one in (self.master.process, self.owner.process)}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        first = next(iter(done))
        return waits[first], first.result()

    async def restart_store(self) -> None:
        """Starts the weight store again where it was, empty.

        Raises:
            WeightsError: it was not ready in time.
        """
        await self.owner.process.end(0.0)
        await self.master.restart()
        self.owner = await self._start_owner()

    async def stop_owner(self) -> None:
        """Ends the memory owner of now."""
        await self.owner.stop()


@asynccontextmanager
async def run_services(config: RunConfig, logs: Path, host: str) -> AsyncGenerator[Services]:
    """Starts the services, listening on ``host``, and ends them with the block, in reverse order.

    Raises:
        BusError: the bus did not start.
        WeightsError: the weight store did not start.
        ConfigError: a library is missing or the memory does not suffice.
    """
    async with AsyncExitStack() as stack:
        nats = await NatsServer.start(log=logs / "nats-server.log", host=host)
        stack.push_async_callback(nats.stop)
        master = await MooncakeMaster.start(log_dir=logs, host=host)
        stack.push_async_callback(master.stop)

        async def start_owner() -> MemoryOwner:
            return await MemoryOwner.start(master.endpoint, log_dir=logs, size_mb=store_size_mb(config), host=host)

        services = Services(nats, master, await start_owner(), start_owner)
        stack.push_async_callback(services.stop_owner)
        yield services


def store_size_mb(config: RunConfig) -> int:
    """MiB that the weight store needs: the versions kept and those on their way, with room for alignment."""
    if config.weights.store_mb is not None:
        return config.weights.store_mb
    one_version = count_parameters(config.model.path) * _BYTES[config.model.dtype]
    versions = config.weights.versions_kept + _SPARE_VERSIONS
    return _MIN_STORE_MB + (int(1.1 * versions * one_version) + _batch_bytes(config)) // (1 << 20)


def _batch_bytes(config: RunConfig) -> int:
    """Room for batches that are too large for the bus: at most two, of the longest sequences."""
    sequences = config.rollout.groups_per_step * max(task.group_size for task in config.tasks.values())
    largest = sequences * config.model.max_context * _BATCH_BYTES_PER_TOKEN
    return min(2 * largest, _MAX_BATCH_BYTES) if largest > MAX_PAYLOAD_BYTES else 0


def count_parameters(directory: Path) -> int:
    """Parameters of a model directory, from the headers of its safetensors files.

    Raises:
        ConfigError: a file is torn.
    """
    return sum(_count_in(path) for path in directory.glob("*.safetensors"))


def _count_in(path: Path) -> int:
    try:
        with safe_open(path, framework="numpy") as file:
            opened: Any = file
            return sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: not a whole safetensors file: {error}; copy or save the model again") from error
