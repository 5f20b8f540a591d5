"""Logs of a run, and what follows them; the run's changes are made by the look of the follower, one a look."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher import log_files as module
from rollart_hpc.launcher.log_files import follow, last_lines, log_files
from rollart_hpc.launcher.run_directory import next_attempt, record_job

Look = Callable[[], dict[str, Path]]


def write(directory: Path, attempt: int, **logs: str) -> None:
    folder = directory / "attempts" / str(attempt) / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in logs.items():
        with (folder / f"{name.replace('_0', '-0').replace('_1', '-1')}.log").open("a") as file:
            file.write(text)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One attempt with three logs, and the leader's."""
    next_attempt(tmp_path)
    write(tmp_path, 1, actor_gen_0="g0\n", actor_gen_1="g1\n", controller="c\n")
    record_job(tmp_path, "12")
    (tmp_path / "slurm-12.out").write_text("l\n")
    return tmp_path


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)


def followed(look: Look, changes: list[Callable[[], object]], lines: int = 5) -> list[str]:
    """What is shown while the changes happen one after the other, each before a look; then the run is over."""
    pending: Iterator[Callable[[], object]] = iter(changes)
    left = count(len(changes), -1)

    def is_over() -> bool:
        next(pending, lambda: None)()
        return next(left) <= 0

    return list(follow(look, is_over, lines))


def test_the_logs_are_those_of_the_newest_attempt_and_the_leader_s(run: Path):
    assert list(log_files(run)) == ["leader", "actor_gen-0", "actor_gen-1", "controller"]
    next_attempt(run)
    write(run, 2, controller="c2\n")
    assert {name: path.read_text() for name, path in log_files(run).items()} == {"leader": "l\n", "controller": "c2\n"}
    assert list(log_files(run, attempt=1)) == ["leader", "actor_gen-0", "actor_gen-1", "controller"]


def test_the_leader_s_log_is_that_of_the_newest_job_that_has_one(run: Path):
    record_job(run, "13")
    assert log_files(run)["leader"].name == "slurm-12.out"
    (run / "slurm-13.out").touch()
    assert log_files(run)["leader"].name == "slurm-13.out"


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("actor_gen", ["actor_gen-0", "actor_gen-1"]),
        ("actor_gen-1", ["actor_gen-1"]),
        ("controller", ["controller"]),
        ("leader", ["leader"]),
        ("nats-server", ["nats-server"]),
        ("environment", ["environment-j7-h20-1-42-0"]),
    ],
)
def test_a_role_or_a_process_can_be_chosen(run: Path, role: str, names: list[str]):
    logs = run / "attempts" / "latest" / "logs"
    (logs / "environment-j7-h20-1-42-0.log").touch()  # joined the running run
    (logs / "nats-server.log").touch()
    assert list(log_files(run, role=role)) == names


def test_what_is_not_there_is_refused_with_what_is(run: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="no log of 'reward'; there are logs of actor_gen, controller, leader"):
        log_files(run, role="reward")
    with pytest.raises(ConfigError, match="has no attempt 7"):
        log_files(run, attempt=7)
    assert log_files(tmp_path / "other", role="reward") == {}


def test_the_ends_are_labelled_when_there_are_several(run: Path):
    write(run, 1, actor_gen_0="2\n3\n")
    assert list(last_lines(log_files(run, role="actor_gen"), 2)) == [
        "actor_gen-0 | 2",
        "actor_gen-0 | 3",
        "actor_gen-1 | g1",
    ]
    assert list(last_lines(log_files(run, role="actor_gen-0"), 2)) == ["2", "3"]
    assert list(last_lines(log_files(run), 0)) == []


def test_new_lines_are_shown_once(run: Path):
    shown = followed(
        lambda: log_files(run, role="controller"),
        [lambda: write(run, 1, controller="d\ne\n"), lambda: None, lambda: write(run, 1, controller="f\n")],
    )
    assert shown == ["c", "d", "e", "f"]


def test_only_new_lines_are_shown_when_no_last_ones_were_asked_for(run: Path):
    look = lambda: log_files(run, role="controller")  # noqa: E731
    assert followed(look, [lambda: write(run, 1, controller="d\n")], lines=0) == ["d"]


def test_lines_that_are_added_while_the_ends_are_printed_are_shown(run: Path):
    following = follow(lambda: log_files(run), lambda: True, 5)
    assert next(following) == "leader | l"
    write(run, 1, controller="d\n", actor_gen_0="late\n")
    assert list(following) == [
        "actor_gen-0 | g0",
        "actor_gen-1 | g1",
        "controller | c",
        "actor_gen-0 | late",
        "controller | d",
    ]


def test_a_file_that_appears_later_is_shown_from_its_first_line(run: Path):
    shown = followed(lambda: log_files(run), [lambda: write(run, 1, reward_0="r\ns\n")], lines=0)
    assert shown == ["reward-0 | r", "reward-0 | s"]


def test_a_torn_last_line_is_shown_when_it_is_whole(run: Path):
    write(run, 1, controller="to")
    shown = followed(
        lambda: log_files(run, role="controller"),
        [lambda: write(run, 1, controller="r"), lambda: write(run, 1, controller="n\nnext\nha")],
    )
    assert shown == ["c", "torn", "next", "ha"]


def test_a_character_that_was_torn_is_whole_in_the_end(run: Path):
    path = run / "attempts" / "1" / "logs" / "controller.log"

    def write_bytes(data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    shown = followed(
        lambda: log_files(run, role="controller"), [lambda: write_bytes(b"\xc3"), lambda: write_bytes(b"\xa4\n")]
    )
    assert shown == ["c", "ä"]


def test_a_new_attempt_is_followed_from_its_first_line_and_the_old_one_to_its_last(run: Path):
    def fail_and_begin_again() -> None:
        write(run, 1, controller="why it failed\n")
        next_attempt(run)
        write(run, 2, controller="begun\n")

    shown = followed(lambda: log_files(run, role="controller"), [fail_and_begin_again])
    assert shown == ["c", "why it failed", "begun"]


def test_a_new_attempt_whose_process_has_not_begun_is_waited_for(run: Path):
    shown = followed(
        lambda: log_files(run, role="actor_gen-0"),
        [lambda: next_attempt(run), lambda: None, lambda: write(run, 2, actor_gen_0="again\n")],
    )
    assert shown == ["g0", "again"]


def test_what_is_written_before_the_end_of_the_run_is_known_is_shown(run: Path):
    def is_over() -> bool:
        write(run, 1, controller="the last word\n")
        return True

    assert list(follow(lambda: log_files(run, role="controller"), is_over, 1)) == ["c", "the last word"]


def test_the_end_of_a_run_without_logs_is_its_end(tmp_path: Path):
    assert followed(lambda: log_files(tmp_path), [lambda: None]) == []
