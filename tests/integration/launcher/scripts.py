"""Attempts with real services, and small programs in the place of the controller and the workers."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import psutil
from rich.console import Console

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.launcher.attempt_log import AttemptLog, AttemptRecord, read_events
from rollart_hpc.launcher.leader import AttemptEnd, Leader
from rollart_hpc.launcher.plan import WorkerPlan
from rollart_hpc.launcher.progress import ProgressView
from rollart_hpc.launcher.run_directory import create, next_attempt
from rollart_hpc.launcher.stop_request import StopRequest
from rollart_hpc.processes import ManagedProcess
from tests.builders import run_config

STEPS = 100
DEADLINE_S = 60
STOP_TIMEOUT_S = 5.0
OBEY = """
import signal, sys, threading
over = threading.Event()
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: over.set())
print("ready", flush=True)
while not over.wait(0.05):
    pass
"""
STOP = OBEY + "sys.exit(75)"
DIE = "import time; print('ready', flush=True); time.sleep(600)"
IGNORE = """
import signal, time
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
TALK = "talk"
"""The program of `stand_in`."""


@dataclass
class ScriptStarter:
    """Starts a script of its own in the place of each process; those without one obey."""

    scripts: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    grace_s: float = 0.5
    started: list[ManagedProcess] = field(default_factory=list)

    async def start(self, name: str, command: Sequence[str], log: Path, plan: WorkerPlan | None) -> ManagedProcess:
        script = self.scripts.get(name, self.scripts.get("all", OBEY))
        argv = [sys.executable, "-c", script]
        if script == TALK:
            (attempt,) = [word.removeprefix("--attempt=") for word in command if word.startswith("--attempt=")]
            argv = [sys.executable, str(Path(__file__).with_name("stand_in.py")), name, attempt]
            argv += [plan.pool] if plan is not None and plan.guest else []
        self.started.append(await ManagedProcess.start(name, argv, log=log, environment=os.environ))
        return self.started[-1]

    def newest(self, name: str) -> ManagedProcess:
        return [process for process in self.started if process.name == name][-1]

    @property
    def running(self) -> list[str]:
        return [process.name for process in self.started if process.exit_code is None]


def small_config(directory: Path, **run: object) -> RunConfig:
    config = run_config()
    values = {"directory": directory, "steps": STEPS, "stop_timeout_s": STOP_TIMEOUT_S, **run}
    weights = config.weights.model_copy(update={"store_mb": 64})
    return config.model_copy(update={"run": config.run.model_copy(update=values), "weights": weights})


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def services_of(starter: ScriptStarter) -> dict[str, psutil.Process]:
    """nats-server, mooncake_master and mooncake_client, children of this process."""
    ours = {process.pid for process in starter.started}
    found: dict[str, psutil.Process] = {}
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it may end meanwhile
            if child.pid not in ours and child.status() != psutil.STATUS_ZOMBIE:
                found[child.name()] = child
    return {name: child for name, child in found.items() if "nats-server" in name or "mooncake" in name}


class Attempted:
    """An attempt that goes on beside the test."""

    def __init__(self, directory: Path, *, generators: int = 1) -> None:
        config = small_config(directory)
        pool = config.pools["all"].model_copy(update={"actor_gen": generators})
        self.config = config.model_copy(update={"pools": {"all": pool}})
        self.directory = create(self.config)
        self.number = next_attempt(directory)
        self.starter = ScriptStarter()
        self.screen = StringIO()
        self.stop = StopRequest()
        self.failures: list[str] = []
        view = ProgressView(Console(file=self.screen, width=300), STEPS)
        log = AttemptLog(directory, self.number, job="12", node="c1")
        self.leader = Leader(
            self.config,
            self.number,
            self.starter,
            view,
            log,
            self.stop,
            on_failure=lambda error, restarts: self.failures.append(str(error)),
        )
        self.task: asyncio.Task[AttemptEnd] | None = None

    async def begin(self, **scripts: str) -> None:
        """Returns when all processes are there."""
        self.starter.scripts = {name.replace("_0", "-0"): script for name, script in scripts.items()}
        self.task = asyncio.create_task(self.leader.run_attempt())
        await until(lambda: len(self.starter.started) >= 4 + self.config.num_workers("actor_gen") or self.is_over)
        await until(lambda: all("ready" in process.tail() for process in self.starter.started) or self.is_over)

    @property
    def is_over(self) -> bool:
        return self.task is not None and self.task.done()

    async def end(self) -> AttemptEnd:
        assert self.task is not None
        return await asyncio.wait_for(self.task, DEADLINE_S)

    @property
    def services(self) -> dict[str, psutil.Process]:
        return services_of(self.starter)

    @property
    def file(self) -> Attempt:
        return Attempt.read(self.directory / "attempts" / "1" / "attempt.json")

    def output(self, name: str) -> list[str]:
        """What a process wrote."""
        return (self.directory / "attempts" / "1" / "logs" / f"{name}.log").read_text().splitlines()

    @property
    def records(self) -> list[AttemptRecord]:
        return read_events(self.directory)

    @property
    def events(self) -> list[str]:
        return [record.event for record in self.records]
