"""Starts runs as a user does, watches them, and breaks them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rollart_hpc.observe.metrics import read_metrics

HERE = Path(__file__).parent
ARITHMETIC = HERE.parents[2] / "examples" / "arithmetic.toml"
DEADLINE_S = 300


@dataclass
class Run:
    """A run as a user starts it: a process of its own, and what it leaves behind."""

    directory: Path
    program: list[str] = field(default_factory=lambda: [sys.executable, "-m", "rollart_hpc.cli.main"])
    process: subprocess.Popen[str] | None = None

    def start(self, *arguments: object) -> None:
        environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*self.program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def wait(self) -> tuple[int, str]:
        assert self.process is not None
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, output

    def execute(self, *arguments: object) -> tuple[int, str]:
        self.start(*arguments)
        return self.wait()

    def train(self, config: Path, model: Path, **settings: object) -> tuple[int, str]:
        return self.execute(*self.arguments(config, model, **settings))

    def arguments(self, config: Path, model: Path, **settings: object) -> list[object]:
        values = {"model.path": model, "run.directory": self.directory, **settings}
        return ["run", config, *(f"--set={key}={value}" for key, value in values.items())]

    def wait_for_step(self, step: int) -> None:
        """Waits until the run has trained ``step`` steps."""
        self.wait_until(lambda: any(record["step"] >= step for record in read_metrics(self.directory)))

    def wait_until(self, holds: Callable[[], object]) -> None:
        """Waits for something that comes while the run goes on."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert self.process is not None
            assert self.process.poll() is None, self.process.stdout and self.process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def pid_of(self, member_id: str) -> int:
        """The process that plays a member (or "controller") now."""
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            if child.status() == psutil.STATUS_ZOMBIE:
                continue
            line = child.cmdline()
            if f"--member-id={member_id}" in line or (member_id == "controller" and "controller" in line):
                return child.pid
        raise LookupError(member_id)

    def kill(self, member_id: str) -> None:
        os.kill(self.pid_of(member_id), signal.SIGKILL)

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.directory / "summary.json").read_text())

    def processes(self) -> list[psutil.Process]:
        """Every live process that belongs to this run."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.directory) in word for word in process.info["cmdline"] or [])
        ]
