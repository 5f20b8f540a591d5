"""``rollart-hpc ledger`` on the files of a run, made by the real scheduler."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.cli.main import main
from rollart_hpc.control_plane.journal import Ended, Journal, read_journal
from rollart_hpc.types import Outcome
from tests.unit.control_plane.run_walk import RunWalk

Execute = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Execute:
    """Runs ``rollart-hpc ledger`` here; gives its exit code and the lines on stdout and stderr."""

    def run(*arguments: object) -> tuple[int, list[str], list[str]]:
        monkeypatch.setattr(sys, "argv", ["rollart-hpc", "ledger", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    return run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run below runs/ of the current directory that was killed twice."""
    (tmp_path / "runs").mkdir()
    walk = RunWalk(tmp_path / "runs" / "walk", 2)
    walk.attempts(3)
    monkeypatch.chdir(tmp_path)
    return walk.run


def spoil(run: Path) -> str:
    """Ends one trajectory again; returns its id."""
    ended = next(record for record in read_journal(run) if isinstance(record, Ended))
    journal = Journal(run)
    journal.append([ended])
    journal.close()
    return ended.trajectory_id


def test_the_balance_is_printed_by_task_and_cause(execute: Execute, run: Path):
    code, out, _ = execute("walk")
    rows = {cells[0]: cells[1:] for line in out if (cells := line.split())}
    assert code == 0
    assert rows["all"] == ["a", "b"]
    ended = [record for record in read_journal(run) if isinstance(record, Ended)]
    trained = [record.trajectory_id[0] for record in ended if record.outcome is Outcome.TRAINED]
    assert rows["trained"] == [str(len(trained)), str(trained.count("a")), str(trained.count("b"))]
    failed = sum(record.cause == "environment died" and record.outcome is Outcome.FAILED for record in ended)
    assert any(line.split()[:4] == ["failed:", "environment", "died", str(failed)] for line in out)
    code, (line,), _ = execute(run, "--json")
    balance = json.loads(line)
    assert list(balance) == ["all", "a", "b"]
    causes = balance["all"].pop("causes")
    assert causes["failed: environment died"] == failed
    assert balance["all"].pop("dispatched") == sum(balance["all"].values())


def test_books_that_hold_are_said_in_one_line(execute: Execute, run: Path):
    code, (line,), errors = execute("walk", "--check")
    assert (code, errors) == (0, [])
    assert "the books hold: " in line
    assert "3 attempts" in line
    code, (line,), _ = execute("walk", "--check", "--json")
    assert (code, json.loads(line)["holds"]) == (0, True)


def test_books_that_do_not_hold_are_exit_code_1_and_a_line_for_each_finding(execute: Execute, run: Path):
    trajectory_id = spoil(run)
    code, out, errors = execute("walk", "--check")
    assert (code, out) == (1, [])
    assert len(errors) == 2
    assert f"error: {trajectory_id} was ended" in errors[0]
    assert "does not balance" in errors[1]
    code, (line,), errors = execute("walk", "--check", "--json")
    said = json.loads(line)
    assert (code, said["holds"], len(said["findings"]), errors) == (1, False, 2, [])


def test_a_note_is_said_and_the_books_hold(execute: Execute, run: Path):
    segment = max((run / "journal").glob("*.bin"))
    segment.write_bytes(segment.read_bytes() + b"torn")
    code, out, _ = execute("walk", "--check")
    assert code == 0
    assert out[0].startswith("note: ")
    assert "the books hold" in out[1]


def test_a_life_is_told(execute: Execute, run: Path):
    trained = next(
        one.trajectory_id for one in read_journal(run) if isinstance(one, Ended) and one.outcome == "trained"
    )
    code, out, _ = execute("walk", "--why", trained)
    assert (code, out[0]) == (0, f"{trained}: trained")
    events = [line.split()[1] for line in out[2:]]
    assert events[:3] == ["opened", "dispatched", "sent"]
    assert "trained" in events
    code, (line,), _ = execute("walk", f"--why={trained}", "--json")
    assert [event["event"] for event in json.loads(line)["events"]][:3] == events[:3]
    group = trained.rpartition(".")[0]
    code, out, _ = execute("walk", "--why", group)
    assert code == 0
    assert any(line.split()[:2] == [trained, "trained"] for line in out)


def test_an_id_that_is_not_there_is_refused_with_similar_ones(execute: Execute, run: Path):
    code, _, (line,) = execute("walk", "--why", "a-0.99")
    assert code == 2
    assert "error: a-0.99: the journal knows no trajectory and no group of this id; similar ones: " in line
    assert "a-0.0" in line


def test_wrong_questions_are_refused(execute: Execute, run: Path):
    assert execute("walk", "--check", "--why=a-0")[0] == 2
    code, _, (line,) = execute("other")
    assert (code, line.startswith("error: other: no run's directory")) == (2, True)
    for path in (run / "journal").iterdir():
        path.unlink()
    for option in ([], ["--check"], ["--why=a"], ["--json"]):
        code, _, (line,) = execute("walk", *option)
        assert (code, f"{run}: has no journal" in line) == (2, True)
