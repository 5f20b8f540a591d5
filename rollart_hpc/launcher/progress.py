"""What a run shows while it goes on: a live table on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from nats.aio.msg import Msg
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollart_hpc.bus import codec, subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.observe.sparkline import sparkline

_LINE_EVERY_S = 5.0


class ProgressView:
    """Follows one attempt's progress."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps = console, steps
        self._success: dict[str, list[float]] = {}
        self._record: dict[str, Any] = {}
        self._last_line = 0.0
        self._live: Live | None = None
        self._bar = Progress(
            TextColumn("step"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._bar_task = self._bar.add_task("steps", total=steps)

    @contextmanager
    def shown(self) -> Generator[None]:
        """Shows the live table while the block runs, where there is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(self._render(), console=self._console, refresh_per_second=4) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    async def follow(self, bus: Bus) -> None:
        """Subscribes to the controller's announcements."""
        await bus.subscribe(subjects.PROGRESS, self._receive)

    def note(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, highlight=False, markup=False)

    async def _receive(self, message: Msg) -> None:
        self._record = codec.decode(message.data, dict[str, Any])
        for name, task in self._record["tasks"].items():
            self._success.setdefault(name, []).append(float(task["success"]))
        self._bar.update(self._bar_task, completed=self._record["step"])
        if self._live is not None:
            self._live.update(self._render())
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S or self._record["step"] == self._steps:
            self._last_line = time.monotonic()
            self.note(self._line())

    def _line(self) -> str:
        record = self._record
        tasks = "  ".join(f"{name} {values[-1]:.2f}" for name, values in self._success.items())
        return (
            f"step {record['step']}/{self._steps}  success: {tasks}  {record['trajectories_per_s']:.0f} trajectories/s "
            f"staleness {record['staleness_max']}{self._advice()}"
        )

    def _advice(self) -> str:
        """Of the profiler, where it gives some."""
        advice = self._record.get("affinity", {}).get("advice")
        return f"  advice: {advice}" if advice else ""

    def _render(self) -> RenderableType:
        table = Table("task", "success", "by step", box=None)
        for name, values in self._success.items():
            table.add_row(name, f"{values[-1]:.2f}", sparkline(values[-60:]))
        if not self._record:
            return Group(self._bar, "starting the workers")
        trajectories = self._record["trajectories"]
        books = "  ".join(f"{outcome} {count}" for outcome, count in trajectories.items() if count)
        return Group(
            self._bar, table, books, f"{self._record['trajectories_per_s']:.0f} trajectories/s{self._advice()}"
        )
