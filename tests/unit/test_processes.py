"""Processes that we start: how they are stopped, and what their exit codes say."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from rollart_hpc.processes import ManagedProcess, describe_exit, ending_signal, tail

OBEDIENT = """
import signal, sys, time
def end(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, end)
print("ready", flush=True)
time.sleep(60)
"""
STUBBORN = OBEDIENT.replace("sys.exit(0)", "number == signal.SIGTERM and sys.exit(5)")
DEAF = OBEDIENT.replace("sys.exit(0)", "None").replace("time.sleep(60)", "[time.sleep(60) for _ in range(9)]")


async def start(script: str, log: Path, **signals: int) -> ManagedProcess:
    process = await ManagedProcess.start(
        "p", [sys.executable, "-c", script], log=log, environment=os.environ, **signals
    )
    async with asyncio.timeout(20):
        while "ready" not in process.tail():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return process


@pytest.mark.parametrize(
    ("signals", "got"),
    [({}, "SIGTERM"), ({"stop_signal": signal.SIGUSR2, "kill_signal": signal.SIGTERM}, "SIGUSR2")],
    ids=["a child", "a step"],
)
async def test_a_process_is_asked_to_stop_by_its_own_signal(tmp_path: Path, signals: dict[str, int], got: str):
    process = await start(OBEDIENT, tmp_path / "log", **signals)
    assert await process.stop() == 0
    assert process.tail() == f"ready\ngot {got}"


async def test_one_that_does_not_stop_is_ended_by_its_own_signal_after_the_grace(tmp_path: Path):
    process = await start(STUBBORN, tmp_path / "log", stop_signal=signal.SIGUSR2, kill_signal=signal.SIGTERM)
    assert await process.stop(grace_s=0.2) == 5
    assert process.tail() == "ready\ngot SIGUSR2\ngot SIGTERM"


async def test_one_that_obeys_nothing_is_killed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rollart_hpc.processes._KILL_GRACE_S", 0.2)
    process = await start(DEAF, tmp_path / "log", stop_signal=signal.SIGUSR2, kill_signal=signal.SIGTERM)
    assert await process.stop(grace_s=0.2) == -signal.SIGKILL


async def test_a_child_has_no_handlers_of_its_parent_and_is_alone_in_its_group(tmp_path: Path):
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        script = "import os, signal; print('ready', signal.getsignal(signal.SIGUSR2), os.getpgid(0) == os.getpid())"
        process = await start(script, tmp_path / "log")
        await process.wait()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert process.tail() == "ready 0 True"


@pytest.mark.parametrize(
    ("code", "number", "words"),
    [
        (0, None, "exit code 0"),
        (1, None, "exit code 1"),
        (75, None, "exit code 75"),
        (128, None, "exit code 128"),
        (255, None, "exit code 255"),
        (-9, signal.SIGKILL, "killed by SIGKILL"),
        (137, signal.SIGKILL, "killed by SIGKILL"),
        (-12, signal.SIGUSR2, "killed by SIGUSR2"),
        (143, signal.SIGTERM, "killed by SIGTERM"),
        (-200, None, "exit code -200"),
    ],
)
def test_an_exit_code_says_which_signal_ended_a_process_here_or_behind_srun(
    code: int, number: signal.Signals | None, words: str
):
    assert ending_signal(code) is number
    assert describe_exit(code) == words


@pytest.mark.parametrize(("lines", "last"), [(0, []), (1, ["99999"]), (3, ["99997", "99998", "99999"])])
def test_the_end_of_a_log_is_as_many_whole_lines_as_were_asked_for(tmp_path: Path, lines: int, last: list[str]):
    (tmp_path / "log").write_text("".join(f"{number}\n" for number in range(100_000)))
    assert tail(tmp_path / "log", lines).splitlines() == last


def test_a_long_end_of_a_log_is_read_whole(tmp_path: Path):
    written = [f"{number:0100}" for number in range(2000)]
    (tmp_path / "log").write_text("\n".join(written))
    assert tail(tmp_path / "log", 1500).splitlines() == written[-1500:]
    assert tail(tmp_path / "log", 3000).splitlines() == written


async def test_one_that_cannot_be_killed_is_left_behind_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("rollart_hpc.processes._KILL_GRACE_S", 0.2)
    process = await start(DEAF, tmp_path / "log", kill_signal=signal.SIGUSR2)
    with monkeypatch.context() as patch:
        patch.setattr(process, "_signal_group", lambda number: None)
        assert await process.stop(grace_s=0.1) == -signal.SIGKILL
    assert process.exit_code is None
    assert f"p (process {process.pid}) has not ended 0.2 s after SIGKILL and is left to the kernel" in caplog.text
    assert await process.end(0.0) == -signal.SIGKILL
    assert process.exit_code == -signal.SIGKILL
