"""What follows an attempt: another one, the continuation, or nothing. Real services, small programs else."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rollart_hpc.launcher import attempts as module
from rollart_hpc.launcher.attempt_log import AttemptLog, AttemptRecord, read_attempts, read_events
from rollart_hpc.launcher.attempts import Attempts, is_begun_by_user
from rollart_hpc.launcher.failure import AttemptFailedError
from rollart_hpc.launcher.leader import AttemptEnd
from rollart_hpc.launcher.run_directory import create
from rollart_hpc.observe.metrics import MetricsWriter
from tests.integration.launcher.scripts import (
    DEADLINE_S,
    IGNORE,
    STEPS,
    STOP,
    ScriptStarter,
    services_of,
    small_config,
    until,
)

FAIL = "print('ready', flush=True); raise SystemExit(9)"
FINISH = """
from pathlib import Path
import json
number = int(Path("{run}/attempts/latest").readlink().name)
Path("{run}/summary.json").write_text(json.dumps({{"attempt": number, "steps": {steps}}}))
"""


@dataclass
class Recorded:
    """A continuation that keeps what it was asked, and when."""

    end: float | None = None
    running: Callable[[], list[str]] = list
    events: Callable[[], list[str]] = list
    asked: list[str] = field(default_factory=list)
    at_go_on: list[list[str]] = field(default_factory=list)

    def stop_at(self) -> float | None:
        return self.end

    def noticed(self) -> None:
        self.asked.append("noticed")

    def go_on(self) -> str:
        self.asked.append("go_on")
        self.at_go_on = [self.running(), self.events()]
        return "job 12 is requeued"


class Run:
    """A run that goes on beside the test."""

    def __init__(self, directory: Path, **run: object) -> None:
        self.config = small_config(directory, **run)
        self.directory = create(self.config)
        self.screen = StringIO()
        self.starter = ScriptStarter()
        self.continuation = Recorded(running=lambda: self.starter.running, events=lambda: self.events)
        self.task: asyncio.Task[AttemptEnd] | None = None

    async def begin(self, *, job: str = "", changes: dict[str, list[Any]] | None = None, **scripts: str) -> None:
        self.starter.scripts = {name.replace("_0", "-0"): script for name, script in scripts.items()}
        attempts = Attempts(
            self.config,
            self.starter,
            Console(file=self.screen, width=300),
            continuation=self.continuation,
            changes=changes or {},
            job=job,
        )
        self.task = asyncio.create_task(attempts.run())

    async def begin_and_wait(self, **scripts: str) -> None:
        """Returns when all processes of the first attempt are there."""
        await self.begin(**scripts)
        await until(lambda: len(self.starter.started) >= 5)
        await until(lambda: all("ready" in process.tail() for process in self.starter.started))

    async def end(self) -> AttemptEnd:
        assert self.task is not None
        return await asyncio.wait_for(self.task, DEADLINE_S)

    async def failure(self) -> AttemptFailedError:
        with pytest.raises(AttemptFailedError) as caught:
            await self.end()
        return caught.value

    @property
    def finish(self) -> str:
        return FINISH.format(run=self.directory, steps=STEPS)

    @property
    def records(self) -> list[AttemptRecord]:
        return read_events(self.directory)

    @property
    def events(self) -> list[str]:
        return [record.event for record in self.records]

    @property
    def by_attempt(self) -> list[tuple[int, str]]:
        return [(record.attempt, record.event) for record in read_attempts(self.directory)]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    made = Run(tmp_path / "run")
    yield made
    if made.task is not None and not made.task.done():
        os.kill(os.getpid(), signal.SIGUSR2)
        await asyncio.wait({made.task}, timeout=DEADLINE_S)
    assert made.starter.running == []
    assert services_of(made.starter) == {}


async def test_a_failed_attempt_is_followed_by_the_next_with_services_of_its_own(run: Run):
    once = f"from pathlib import Path\nif Path('{run.directory}/attempts/2').exists():\n"
    finish = "".join(f"    {line}\n" for line in run.finish.splitlines())
    await run.begin(controller=f"{once}{finish}else:\n    raise SystemExit(9)")
    assert await run.end() == AttemptEnd(stopped=False)
    assert run.by_attempt == [(1, "started"), (1, "failed"), (2, "started"), (2, "done")]
    failed = run.records[1]
    assert failed.cause == "controller ended with exit code 9"
    assert failed.next == "another attempt"
    files = [(run.directory / "attempts" / number / "attempt.json").read_text() for number in ("1", "2")]
    assert files[0] != files[1]
    assert [record.by_user for record in run.records if record.event == "started"] == [True, False]
    assert "attempt 1 failed, another attempt follows: controller ended with exit code 9" in run.screen.getvalue()


async def test_a_run_that_fails_the_same_way_again_and_again_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "pause_s", lambda number: 0.0)
    await run.begin(controller=FAIL)
    error = await run.failure()
    assert str(error) == "controller ended with exit code 9; 3 attempts in a row failed the same way without a new step"
    assert error.details == "ready"
    assert run.by_attempt == [(number, event) for number in (1, 2, 3) for event in ("started", "failed")]
    assert [record.next for record in run.records if record.event == "failed"] == ["another attempt"] * 2 + [""]
    assert run.continuation.asked == []


async def test_failures_are_counted_over_requeues_of_the_job(tmp_path: Path):
    run = Run(tmp_path / "run", max_failures=2)
    earlier = AttemptLog(run.directory, 1, job="12")
    earlier.write("started", by_user=True)
    earlier.write("failed", cause="controller ended with exit code 9")
    await run.begin(job="12", controller=FAIL)
    assert "2 attempts in a row failed the same way" in str(await run.failure())


async def test_an_attempt_that_trained_a_new_step_begins_a_new_row(tmp_path: Path):
    run = Run(tmp_path / "run", max_failures=2)
    earlier = AttemptLog(run.directory, 1, job="12")
    earlier.write("failed", cause="controller ended with exit code 9", step=3)
    metrics = MetricsWriter(run.directory, after_step=0)
    metrics.write(4, {"tasks": {}})
    metrics.close()
    await run.begin(job="12", controller=FAIL)
    await run.failure()
    assert [record.step for record in run.records if record.event == "failed"] == [3, 4, 4]


async def test_wrong_input_is_met_once(run: Run):
    await run.begin(controller="raise SystemExit(2)")
    assert str(await run.failure()) == "controller ended with exit code 2"
    assert run.by_attempt == [(1, "started"), (1, "failed")]
    assert run.records[-1].next == ""


async def test_a_service_that_cannot_be_started_is_a_failed_attempt(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "pause_s", lambda number: 0.0)
    monkeypatch.setattr("rollart_hpc.bus.server.server_binary", lambda: "/bin/false")
    await run.begin()
    assert "3 attempts in a row failed the same way" in str(await run.failure())
    assert run.starter.started == []


async def test_a_stop_in_the_pause_between_attempts_is_heard(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "pause_s", lambda number: 3600.0)
    await run.begin(controller=FAIL)
    await until(lambda: "failed" in run.events)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await run.end()).stopped
    assert run.by_attempt == [(1, "started"), (1, "failed"), (1, "stopped")]
    assert run.continuation.asked == ["noticed", "go_on"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
async def test_a_signal_at_the_leader_stops_the_run_and_the_continuation_sees_to_it(run: Run, number: signal.Signals):
    await run.begin_and_wait(controller=STOP)
    os.kill(os.getpid(), number)
    end = await run.end()
    assert end.saved_s is not None
    assert run.events == ["started", "noticed", "saved", "stopped", "next"]
    assert run.records[1].cause == f"leader: {number.name}"
    assert run.records[-1].next == "job 12 is requeued"
    assert run.continuation.asked == ["noticed", "go_on"]
    assert run.continuation.at_go_on == [[], ["started", "noticed", "saved", "stopped"]]
    assert f"stopping (leader: {number.name}): saving at the next step boundary" in run.screen.getvalue()


async def test_each_further_signal_is_told_to_the_continuation(run: Run):
    await run.begin_and_wait(controller=IGNORE)
    for count in (1, 2, 3):
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: run.continuation.asked.count("noticed") == count)  # noqa: B023
    run.starter.newest("controller").kill()
    assert (await run.end()).stopped


async def test_signals_of_all_kinds_and_times_make_one_stop(run: Run):
    await run.begin()
    await until(lambda: "started" in run.events)
    for _ in range(3):
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
    assert (await run.end()).stopped
    assert run.events.count("noticed") == run.events.count("stopped") == 1


async def test_the_run_stops_before_its_time_is_over(run: Run):
    run.continuation.end = time.time() + 1.0
    await run.begin(controller=STOP)
    assert (await run.end()).stopped
    assert [record.cause for record in run.records if record.event == "noticed"] == [
        "the time of the job is nearly over"
    ]
    assert run.continuation.asked == ["noticed", "go_on"]


async def test_a_job_whose_time_was_extended_goes_on(run: Run):
    ends = [time.time() + 0.2, time.time() + 3600]

    def stop_at() -> float:
        return ends.pop(0) if len(ends) > 1 else ends[0]

    run.continuation.stop_at = stop_at  # pyright: ignore[reportAttributeAccessIssue]
    await run.begin_and_wait(controller=STOP)
    await until(lambda: len(ends) == 1)
    await asyncio.sleep(0.5)
    assert "noticed" not in run.events


async def test_changes_and_requeues_are_recorded_with_the_start(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    await run.begin(job="12", changes={"rollout.alpha": [1, 2]}, controller=run.finish)
    await run.end()
    started = run.records[0]
    assert (started.job, started.requeues, started.changes) == ("12", 2, {"rollout.alpha": [1, 2]})
    assert started.by_user


def record(event: str, job: str = "12", follows: str = "") -> AttemptRecord:
    return AttemptRecord(attempt=1, event=event, at=0.0, job=job, next=follows)


@pytest.mark.parametrize(
    ("events", "job", "expected"),
    [
        ([], "12", True),
        ([record("failed", "")], "", True),
        ([record("started"), record("failed")], "12", False),
        ([record("started"), record("failed")], "13", True),
        ([record("started")], "13", True),
        ([record("stopped"), record("next")], "13", True),
        ([record("stopped"), record("next", "12", "job 13 follows")], "13", False),
        ([record("started"), record("noticed")], "13", False),
        ([record("stopped")], "13", False),
    ],
    ids=[
        "a new run",
        "on one machine",
        "requeued",
        "submitted after a failure",
        "submitted after a loss",
        "submitted after a stop",
        "chained",
        "chained and killed",
        "chained and killed after the stop",
    ],
)
def test_who_began_an_attempt(events: list[AttemptRecord], job: str, expected: bool):
    assert is_begun_by_user(events, job) == expected
