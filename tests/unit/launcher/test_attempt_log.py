"""What remains of attempts, torn lines included."""

import time
from pathlib import Path

import msgspec
import pytest

from rollart_hpc.bus.membership import Member
from rollart_hpc.launcher.attempt_log import AttemptLog, read_attempts, read_members
from rollart_hpc.launcher.run_directory import jobs_of, next_attempt, read_jobs, record_job
from rollart_hpc.types import Role


def member(**changes: object) -> Member:
    own = Member(member_id="actor_gen-0", role=Role.ACTOR_GEN, hardware="H20", node="h20-1", pid=7, incarnation="a")
    return msgspec.structs.replace(own, **changes)


def events_of(directory: Path, *changes: tuple[Member | None, Member | None]) -> list[tuple[str, str]]:
    log = AttemptLog(directory, next_attempt(directory))
    for before, after in changes:
        log.member_changed(before, after)
    return [(record.event, record.node) for record in read_members(directory, 1)]


def test_starts_and_ends_come_back_in_order_with_job_node_cause_and_restarts(tmp_path: Path):
    before = time.time()
    AttemptLog(tmp_path, 1, job="12", node="c1").write("started")
    AttemptLog(tmp_path, 1, job="12", node="c1").write("failed", cause="größe\nzwei", restarts={"actor_gen-0": 2})
    AttemptLog(tmp_path, 2).write("started")
    first, second, third = read_attempts(tmp_path)
    assert (first.attempt, first.event, first.job, first.node, first.cause) == (1, "started", "12", "c1", "")
    assert (second.event, second.cause, second.restarts) == ("failed", "größe\nzwei", {"actor_gen-0": 2})
    assert (third.attempt, third.job, third.node) == (2, "", "")
    assert before <= first.at <= second.at <= third.at <= time.time()


def test_a_run_that_has_not_begun_has_no_records(tmp_path: Path):
    assert (read_attempts(tmp_path), read_members(tmp_path, 1), jobs_of(tmp_path)) == ([], [], [])


def test_a_worker_joins_and_leaves(tmp_path: Path):
    assert events_of(tmp_path, (None, member()), (member(), None)) == [("joined", "h20-1"), ("left", "h20-1")]
    (joined, _) = read_members(tmp_path, 1)
    assert (joined.member_id, joined.role, joined.hardware, joined.pid) == ("actor_gen-0", "actor_gen", "H20", 7)


def test_a_worker_that_only_changes_neither_joins_nor_leaves(tmp_path: Path):
    assert events_of(tmp_path, (None, member()), (member(), member(version=3))) == [("joined", "h20-1")]


def test_a_worker_that_takes_the_name_of_another_is_another_one(tmp_path: Path):
    newer = member(incarnation="b", node="h20-2")
    assert events_of(tmp_path, (None, member()), (member(), newer)) == [
        ("joined", "h20-1"),
        ("left", "h20-1"),
        ("joined", "h20-2"),
    ]


def test_members_are_kept_by_attempt(tmp_path: Path):
    for number in (next_attempt(tmp_path), next_attempt(tmp_path)):
        AttemptLog(tmp_path, number).member_changed(None, member(pid=number))
    assert [[record.pid for record in read_members(tmp_path, number)] for number in (1, 2)] == [[1], [2]]


@pytest.mark.parametrize("torn", [b'{"attempt":1,"eve', b'{"attempt":1}\n', b"\xff\n", b"[]\n", b"\n"], ids=repr)
def test_a_line_that_is_no_record_costs_itself_alone(tmp_path: Path, torn: bytes):
    log = AttemptLog(tmp_path, 1)
    log.write("started")
    with (tmp_path / "attempts.jsonl").open("ab") as file:
        file.write(torn)
    log.write("failed")
    log.write("started")
    assert [record.event for record in read_attempts(tmp_path)] == ["started", "failed", "started"]


def test_jobs_are_noted_once_in_their_order_with_the_time_of_their_submission(tmp_path: Path):
    record_job(tmp_path, "12", at=3.5)
    record_job(tmp_path, "9")
    record_job(tmp_path, "12", at=8.0)
    assert jobs_of(tmp_path) == ["12", "9"]
    assert read_jobs(tmp_path)["12"] == 3.5
    assert time.time() - read_jobs(tmp_path)["9"] < 60


def test_a_torn_line_does_not_hide_the_jobs(tmp_path: Path):
    record_job(tmp_path, "1")
    with (tmp_path / "jobs.jsonl").open("ab") as file:
        file.write(b'{"job":"2","a')
    record_job(tmp_path, "3")
    assert jobs_of(tmp_path) == ["1", "3"]
