import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart_hpc.slurm.single_machine.daemon import Daemon, end_daemons, signals_held, start_daemon, start_time
from rollart_hpc.slurm.single_machine.process_group import run_to_end
from tests.slurm.waiting import wait_until

WITH_A_CHILD = "trap '' TERM; sleep 600 & echo $! > child.new; mv child.new child; {then}"

ASKS = "import os, time; os.kill(os.getppid(), {number}); open('asked', 'w').close(); time.sleep(600)"
"""In Python, which unlike sh keeps the signal mask that it was started with."""


class Asked(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., int | None]:
    """Runs a script of sh in ``tmp_path``."""

    def run_script(script: str, deadline_s: float = 60.0) -> int | None:
        environment = {"PATH": os.environ["PATH"]}
        argv = ["sh", "-c", f"cd {tmp_path}; {script}"]
        return run_to_end(argv, output=tmp_path / "out", environment=environment, deadline_s=deadline_s)

    return run_script


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def asking(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that raises Asked here."""

    def ask(number: int, frame: object) -> None:
        raise Asked

    before = signal.signal(request.param, ask)
    yield request.param
    signal.signal(request.param, before)


def lives(child: Path) -> bool:
    return start_time(int(child.read_text())) is not None


def test_a_program_that_ends_has_its_exit_code_and_its_output(tmp_path: Path, run: Callable[..., int | None]):
    assert run("echo out; echo err >&2; exit 3") == 3
    assert (tmp_path / "out").read_text().split() == ["out", "err"]


@pytest.mark.parametrize(
    ("then", "deadline_s", "code"),
    [("exit 3", 60.0, 3), ("wait", 3.0, None), ("kill -9 $$", 60.0, -9)],
    ids=["ends", "is late", "is killed"],
)
def test_no_child_of_a_program_lives_on(
    then: str, deadline_s: float, code: int | None, tmp_path: Path, run: Callable[..., int | None]
):
    assert run(WITH_A_CHILD.format(then=then), deadline_s) == code
    assert not lives(tmp_path / "child")


def test_no_child_of_a_program_lives_on_when_we_are_asked_to_end(
    asking: signal.Signals, tmp_path: Path, run: Callable[..., int | None]
):
    with pytest.raises(Asked):
        run(WITH_A_CHILD.format(then=f"kill -{asking} $PPID; wait"))
    assert not lives(tmp_path / "child")


def test_a_request_to_end_waits_until_a_new_daemon_is_known(asking: signal.Signals, tmp_path: Path):
    known: list[Daemon] = []
    with pytest.raises(Asked), signals_held():
        argv = [sys.executable, "-c", ASKS.format(number=int(asking))]
        daemon, _ = start_daemon("d", argv, output=tmp_path / "out", directory=tmp_path, environment=os.environ)
        wait_until((tmp_path / "asked").exists, "the daemon to ask")
        known.append(daemon)
    assert known[0].alive
    assert end_daemons(known, 10) == [], "it hears SIGTERM"
