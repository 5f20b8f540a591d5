"""Of the sandboxes of a process that is killed nothing is left."""

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.config.node import Runtime
from rollart_hpc.temporary import sweep
from tests.integration.sandbox import hold_sandboxes

WITHIN_S = 60.0
_log = logging.getLogger(__name__)


def until(condition: Callable[[], bool], what: str) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < WITHIN_S, f"{what}: not within {WITHIN_S:g} s"
        time.sleep(0.02)
    return time.monotonic() - begin


def is_alive(pid: int) -> bool:
    """Zombies are not: only their first parent, who is none of ours, has not yet looked."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sleeping(mark: str) -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += path.read_bytes() == f"sleep\0{mark}\0".encode()
        except OSError:
            continue
    return count


def descendants(pid: int) -> set[int]:
    found = {pid}
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found |= descendants(int(child))
    return found


def held(count: int, directory: Path, runtime: Runtime) -> tuple[subprocess.Popen[str], str]:
    mark = f"47{os.getpid()}.{count}"
    process = subprocess.Popen(
        [sys.executable, hold_sandboxes.__file__, str(count), mark, runtime],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    return process, mark


def kill_and_look(count: int, directory: Path, runtime: Runtime) -> None:
    process, mark = held(count, directory, runtime)
    with process:
        try:
            assert process.stdout is not None
            opened_s = float(process.stdout.readline())
            started_s = until(lambda: sleeping(mark) == 2 * count, "all commands")
            everything = descendants(process.pid) - {process.pid}
            assert len(everything) > 5 * count
        finally:
            process.kill()
            process.wait()
    gone_s = until(lambda: not any(map(is_alive, everything)) and sleeping(mark) == 0, "the end")
    _log.info("%d opened in %.2f s, all commands %.2f s later, gone in %.2f s", count, opened_s, started_s, gone_s)
    # What is left on the disk goes with the next that looks.
    before = tempfile.tempdir
    tempfile.tempdir = str(directory)
    try:
        sweep()
    finally:
        tempfile.tempdir = before
    assert list(directory.iterdir()) == []


def test_nothing_is_left_when_the_process_is_killed(tmp_path: Path, runtime: Runtime):
    kill_and_look(3, tmp_path, runtime)


@pytest.mark.slow
def test_nothing_is_left_of_two_hundred_at_once(tmp_path: Path):
    kill_and_look(200, tmp_path, "bubblewrap")
