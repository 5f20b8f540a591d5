"""The two services of the weight store: mooncake_master (index) and mooncake_client (memory owner).

Invariants: the bytes belong to the owner process, so a trainer that dies loses nothing; the index belongs to
the master, so a master that restarts loses everything and the attempt publishes again. A new owner under an old
master would not do either: for some ten seconds the master sends a part of all puts to the dead one. So whichever
dies, both are started again, the master on its port: its clients' next call fails, the one after it finds it.

Both are children of the process that starts them (see `rollart_hpc.processes`). Only the master's ports are bound to
``host``: Mooncake opens transfer ports of the owner and of every client on all interfaces and has no authentication,
so a store belongs on a private network.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from rollart_hpc.errors import ConfigError, WeightsError
from rollart_hpc.ports import free_port
from rollart_hpc.processes import ManagedProcess
from rollart_hpc.weights.store import StoreEndpoint, check_master

_READY_DEADLINE_S = 20.0
_PORT_ATTEMPTS = 3
_PORT_AGAIN_S = 0.5
_LDD_DEADLINE_S = 20.0
_PACKAGES: Mapping[str, str] = {
    "libibverbs.so.1": "libibverbs1",
    "librdmacm.so.1": "librdmacm1",
    "libnl-3.so.200": "libnl-3-200",
    "libnl-route-3.so.200": "libnl-route-3-200",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4",
}


def mooncake_folder() -> Path:
    """Where the installed wheel keeps Mooncake's programs and libraries.

    Raises:
        ConfigError: no Mooncake wheel is installed.
    """
    spec = importlib.util.find_spec("mooncake")
    if spec is None or spec.origin is None:
        raise ConfigError("Mooncake is not installed in this environment; install rollart-hpc[cpu] or rollart-hpc[gpu]")
    return Path(spec.origin).parent


def parse_missing(ldd_output: str) -> tuple[str, ...]:
    """The libraries that ``ldd`` did not find."""
    return tuple(line.split()[0] for line in ldd_output.splitlines() if line.rstrip().endswith("=> not found"))


def missing_libraries() -> tuple[str, ...]:
    """Shared libraries that Mooncake needs and this machine lacks; empty when all are there.

    Raises:
        ConfigError: no Mooncake wheel is installed.
        WeightsError: ``ldd`` did not end within 20 s.
    """
    folder, missing = mooncake_folder(), dict[str, None]()
    for name in ("mooncake_master", "mooncake_client", "store.so"):
        missing.update(dict.fromkeys(parse_missing(_ldd(folder / name))))
    return tuple(missing)


def _ldd(file: Path) -> str:
    try:
        return subprocess.run(
            ["ldd", str(file)], capture_output=True, text=True, timeout=_LDD_DEADLINE_S, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        raise WeightsError(
            f"ldd {file} did not end within {_LDD_DEADLINE_S:g} s: the file system of this environment does not answer "
            "or is very slow; try again, or install the environment on another one"
        ) from None


def check_libraries() -> None:
    """Refuses a machine on which Mooncake cannot start.

    Raises:
        ConfigError: libraries or the wheel are missing; the text names the Debian packages.
        WeightsError: they could not be looked for in time.
    """
    if missing := missing_libraries():
        raise ConfigError(missing_text(missing))


def missing_text(missing: tuple[str, ...]) -> str:
    """What to tell a user who lacks these libraries."""
    packages = " ".join(_PACKAGES.get(name, f"<the package of {name}>") for name in missing)
    return f"Mooncake needs {', '.join(missing)}, not found on this machine; on Debian: apt-get install {packages}"


class MooncakeMaster:
    """A running mooncake_master: the index of one attempt's weight store."""

    def __init__(self, process: ManagedProcess, endpoint: StoreEndpoint, arguments: list[str], log_dir: Path) -> None:
        self.process = process
        self.endpoint = endpoint
        self._arguments, self._log_dir = arguments, log_dir

    @classmethod
    async def start(cls, *, log_dir: Path, host: str = "127.0.0.1", lease_s: float = 4.0) -> MooncakeMaster:
        """Starts the master on free ports and waits until it listens.

        Args:
            log_dir: gets ``mooncake_master.log``, appended to.
            host: address that workers reach.
            lease_s: how long after a read the bytes stay: longer than one bucket takes on the slowest link.

        Raises:
            ConfigError: Mooncake or its libraries are not installed.
            WeightsError: it ended or was not ready within 20 s; the text has the end of its log.
        """
        await asyncio.to_thread(check_libraries)
        for last in range(1, _PORT_ATTEMPTS + 1):
            port, metrics_port = free_port(host), free_port(host)
            arguments = [
                f"--rpc_address={host}",
                f"--rpc_port={port}",
                f"--metrics_host={host}",
                f"--metrics_port={metrics_port}",
                f"--default_kv_lease_ttl={int(lease_s * 1000)}ms",
                "--enable_metric_reporting=false",
                "--logtostderr",
            ]
            process = await _start("mooncake_master", arguments, log_dir, port, last == _PORT_ATTEMPTS)
            if process is not None:
                metrics = f"http://{host}:{metrics_port}/metrics"
                return cls(process, StoreEndpoint(master=f"{host}:{port}", metrics_url=metrics), arguments, log_dir)
        raise AssertionError("the last attempt either starts or raises")

    async def restart(self) -> None:
        """Starts it again on its ports, empty; one that still runs is killed.

        Raises:
            WeightsError: it ended or was not ready within 20 s; the text has the end of its log.
        """
        await self.process.end(0.0)
        port = int(self.endpoint.master.rpartition(":")[2])
        for last in range(1, _PORT_ATTEMPTS + 1):
            process = await _start("mooncake_master", self._arguments, self._log_dir, port, last == _PORT_ATTEMPTS)
            if process is not None:
                self.process = process
                return
            await asyncio.sleep(_PORT_AGAIN_S)

    async def stop(self) -> None:
        """Ends it within seconds; every object of the store is lost."""
        await self.process.stop()


class MemoryOwner:
    """A running mooncake_client: holds the bytes of the weight store in this node's memory."""

    def __init__(self, process: ManagedProcess) -> None:
        self.process = process

    @classmethod
    async def start(
        cls, endpoint: StoreEndpoint, *, log_dir: Path, size_mb: int, host: str = "127.0.0.1"
    ) -> MemoryOwner:
        """Starts an owner of ``size_mb`` MiB and waits until its memory belongs to the store.

        Args:
            endpoint: of the master.
            log_dir: gets ``mooncake_client.log``, appended to.
            size_mb: address space is taken at once, physical memory as it is written.
            host: address of this node that workers reach.

        Raises:
            ConfigError: Mooncake is not installed, or the node has less memory available.
            WeightsError: the master does not answer, or the owner ended or was not ready within 20 s; the text has
                the end of its log.
        """
        await asyncio.to_thread(check_libraries)
        await asyncio.to_thread(check_master, endpoint)
        available_mb = psutil.virtual_memory().available >> 20
        if size_mb > available_mb:
            raise ConfigError(
                f"the weight store should own {size_mb} MiB here but only {available_mb} MiB of memory are available; "
                "lower weights.store_mb or weights.versions_kept, or use a node with more memory"
            )
        for last in range(1, _PORT_ATTEMPTS + 1):
            port = free_port(host)
            arguments = [
                f"--host={host}",
                f"--port={port}",
                f"--global_segment_size={size_mb << 20}",
                "--protocol=tcp",
                f"--master_server_address={endpoint.master}",
                f"--metadata_server={endpoint.metadata}",
                "--logtostderr",
            ]
            process = await _start("mooncake_client", arguments, log_dir, port, last == _PORT_ATTEMPTS)
            if process is not None:
                return cls(process)
        raise AssertionError("the last attempt either starts or raises")

    async def stop(self) -> None:
        """Ends it within seconds; the bytes that it held are lost."""
        await self.process.stop()


async def _start(
    program: str, arguments: list[str], log_dir: Path, port: int, last_attempt: bool
) -> ManagedProcess | None:
    """The process once it listens on ``port``; None when it ended and may be tried again.

    Another process may have taken one of its ports, and it chooses some by itself and names none of them when it ends.
    """
    argv = [str(mooncake_folder() / program), *arguments]
    process = await ManagedProcess.start(program, argv, log=log_dir / f"{program}.log", environment=os.environ)
    try:
        if await _listens(process, port):
            return process
    except BaseException:
        await process.stop()
        raise
    code, tail = process.exit_code, process.tail()
    await process.stop()
    if code is None:
        raise WeightsError(f"{program} did not listen on port {port} within {_READY_DEADLINE_S:g} s; its log:\n{tail}")
    if not last_attempt:
        return None
    raise WeightsError(f"{program} ended at start with code {code}; its log ({process.log}):\n{tail}")


async def _listens(process: ManagedProcess, port: int) -> bool:
    """Whether this very process comes to listen; connecting would not tell it from another one on a lost port."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _READY_DEADLINE_S
    while loop.time() < deadline and process.exit_code is None:
        try:
            connections = psutil.Process(process.pid).net_connections("tcp")
        except psutil.NoSuchProcess:
            connections = []
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections):
            return True
        await asyncio.sleep(0.02)
    return False
