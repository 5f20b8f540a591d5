"""What is known of a run, and the commands that show it; Slurm says what the test tells it to."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from rollart_hpc.bus.membership import Member
from rollart_hpc.cli import status as command
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.attempt_log import AttemptLog
from rollart_hpc.launcher.run_directory import create, owned, record_job
from rollart_hpc.launcher.status import age_s, is_over, read_status, read_statuses
from rollart_hpc.slurm.queue import job_states
from rollart_hpc.slurm.queue.squeue import parse_queue
from rollart_hpc.types import Role
from tests.unit.launcher.runs import History, Slurm, config_in


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return create(config_in(tmp_path / "run"))


@pytest.fixture
def history(run: Path) -> History:
    return History(run)


def test_slurm_is_not_asked_when_there_is_no_job_and_by_a_follower_of_a_run_that_is_done(
    run: Path, history: History, slurm: Slurm
):
    states = slurm.states()
    read_status(run, states)
    history.add("submit 5")
    history.add("done 5")
    assert is_over(run, states)
    assert slurm.asked == 0


def test_a_watcher_asks_slurm_when_it_is_time_and_when_the_leader_has_written_something(
    run: Path, history: History, slurm: Slurm
):
    states = slurm.states()
    history.add("submit 5")
    slurm.queue("5", "PENDING")
    assert [read_status(run, states).state for _ in range(5)] == ["queued"] * 5
    assert slurm.asked == 1
    history.add("started 5")
    slurm.lines.clear()
    slurm.queue("5", "RUNNING")
    assert [read_status(run, states).state for _ in range(5)] == ["running"] * 5
    assert slurm.asked == 2
    slurm.now = 31.0
    assert [is_over(run, states) for _ in range(5)] == [False] * 5
    assert slurm.asked == 3
    history.add("failed 5")
    assert [is_over(run, states) for _ in range(5)] == [True] * 5
    assert slurm.asked == 4
    read_status(run, states, force=True)
    assert slurm.asked == 5


def test_a_run_that_waits_says_why_and_until_when(run: Path, history: History, slurm: Slurm):
    history.add("submit 5")
    slurm.queue("5+0", "PENDING", start="2026-11-30T10:00:00", reason="Resources")
    slurm.queue("5+1", "PENDING", start="2026-11-30T11:00:00", reason="Resources")
    found = read_status(run, slurm.states())
    assert (found.job, found.job_state, found.reason) == ("5", "PENDING", "Resources")
    (five,) = parse_queue("5|5|PENDING|2026-11-30T11:00:00|p||None").values()
    assert five.start is not None
    assert found.expected_start == five.start.timestamp()
    assert found.cause == ""


def test_what_was_done_about_a_forgotten_job_and_what_follows_are_said(
    run: Path, history: History, slurm: Slurm, program: typer.Typer
):
    for text in ("submit 5", "stopped 5", "next 5 requeued"):
        history.add(text)
    slurm.queue("5", "PENDING")
    slurm.helped["5"] = "nudged"
    found = read_status(run, slurm.states())
    assert (found.state, found.reason, found.next) == ("queued", "nudged", "requeued")
    assert slurm.asked == 2
    text = CliRunner().invoke(program, ["status", str(run)]).output
    assert "5 PENDING (nudged)" in text
    assert "requeued: attempt 2" in text


def test_a_run_that_goes_on_has_no_reason_to_wait(run: Path, history: History, slurm: Slurm):
    history.add("submit 5")
    history.add("started 5")
    slurm.queue("5", "RUNNING", start="2026-11-30T10:00:00", reason="odd")
    found = read_status(run, slurm.states())
    assert (found.reason, found.expected_start) == ("", None)


def test_a_failed_run_says_why_and_the_cause_of_another_attempt_is_not_its_own(
    run: Path, history: History, slurm: Slurm
):
    history.add("submit 5")
    history.add("failed 5", cause="the controller ended")
    slurm.ended = {"5": "FAILED", "6": "NODE_FAIL"}
    assert read_status(run, slurm.states()).cause == "the controller ended"
    history.add("submit 6")
    assert read_status(run, slurm.states()).cause == "job 6 ended as NODE_FAIL before its leader began an attempt"
    slurm.queue("6", "PENDING")
    assert read_status(run, slurm.states()).cause == ""


def test_the_workers_that_are_there_are_counted_by_pool_and_role_and_guests_beside_them(
    run: Path, history: History, slurm: Slurm, program: typer.Typer
):
    history.add("submit 5")
    history.add("started 5")
    slurm.queue("5+0", "RUNNING", nodes="c1")
    slurm.queue("5+1", "RUNNING", nodes="h20-[1-2]")
    log = AttemptLog(run, 1)
    gone = worker("actor_gen-0", Role.ACTOR_GEN, pool="gpu")
    for member in (
        gone,
        worker("actor_gen-1", Role.ACTOR_GEN, pool="gpu"),
        worker("reward-0", Role.REWARD, pool="cpu"),
        worker("x-9", Role.REWARD),
    ):
        log.member_changed(None, member)
    log.member_changed(gone, None)
    for member in (
        worker("actor_gen-x-1-0", Role.ACTOR_GEN, pool="gpu", guest=True),
        worker("environment-x-1-0", Role.ENVIRONMENT, pool="gpu", guest=True),
        *(worker(f"actor_gen-y-1-{number}", Role.ACTOR_GEN, pool="spot", guest=True) for number in range(2)),
    ):
        log.member_changed(None, member)
    cpu, gpu, spot = read_status(run, slurm.states()).pools
    assert (cpu.name, cpu.hardware, cpu.state, cpu.nodes) == ("cpu", "cpu", "RUNNING", "c1")
    assert (gpu.name, gpu.hardware, gpu.state, gpu.nodes) == ("gpu", "H20", "RUNNING", "h20-[1-2]")
    assert [(role.role, role.present, role.planned, role.guests) for role in gpu.roles] == [
        ("actor_train", 0, 1, 0),
        ("actor_gen", 1, 2, 1),
        ("environment", 0, 0, 1),
    ]
    assert (spot.name, spot.hardware, spot.state, spot.nodes) == ("spot", "h", "", "")
    assert [(role.role, role.present, role.planned, role.guests) for role in spot.roles] == [("actor_gen", 0, 0, 2)]
    shown = CliRunner().invoke(program, ["status", str(run)]).output
    assert "actor_train 0/1  actor_gen 1/2+1  environment +1" in shown
    assert "actor_gen +2" in shown
    assert [(role.role, role.present, role.planned) for role in cpu.roles] == [
        ("environment", 0, 1),
        ("reward", 1, 1),
    ]
    AttemptLog(run, 1, job="5").write("failed")
    pools = read_status(run, slurm.states()).pools
    assert [pool.name for pool in pools] == ["cpu", "gpu"]
    assert all(role.present == role.guests == 0 for pool in pools for role in pool.roles)


def worker(member_id: str, role: Role, *, pool: str = "", guest: bool = False) -> Member:
    return Member(member_id=member_id, role=role, hardware="h", node="n", pid=1, pool=pool, guest=guest)


def test_progress_is_that_of_the_newest_step(run: Path, history: History, slurm: Slurm):
    fresh = read_status(run, slurm.states())
    assert (fresh.attempt, fresh.step, fresh.steps, fresh.success, fresh.step_seconds) == (0, 0, 30, {}, None)
    assert age_s(fresh) is None
    history.add("started")
    for step, success in ((1, 0.25), (2, None)):
        record = {"step": step, "at": 1000.0 + step, "tasks": {"a": {"success": success}}, "seconds": {"step": 1.5}}
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")
    found = read_status(run, slurm.states())
    assert (found.attempt, found.step, found.success, found.step_seconds) == (1, 2, {"a": None}, 1.5)
    assert found.updated == 1000.0 + 2
    assert found == read_status(run, slurm.states())
    age = age_s(found)
    assert age is not None
    assert age > 0


def test_what_is_no_run_has_no_state(tmp_path: Path, slurm: Slurm):
    with pytest.raises(ConfigError, match="not a run's directory"):
        read_status(tmp_path, slurm.states())


def test_many_runs_are_one_question_and_one_of_another_version_is_told(tmp_path: Path, slurm: Slurm):
    runs = [create(config_in(tmp_path / name)) for name in ("a", "b", "c", "d")]
    for number, one in enumerate(runs[:3]):
        record_job(one, str(number), at=1000.0)
    slurm.queue("0", "PENDING")
    slurm.queue("1", "RUNNING")
    slurm.ended = {"2": "CANCELLED"}
    (runs[0].parent / "old").mkdir()
    (runs[0].parent / "old" / "config.json").write_text('{"run": {"name": "old", "pace": 1}}')
    found, faults = read_statuses([*runs, runs[0].parent / "old"], slurm.states())
    assert [one.job_state for one in found] == ["PENDING", "RUNNING", "CANCELLED", ""]
    assert [one.state for one in found] == ["queued", "queued", "cancelled", "lost"]
    assert ["pace" in fault for fault in faults] == [True]
    assert slurm.asked == 1


def test_the_lock_is_looked_at_without_leaving_a_trace_and_while_others_look(run: Path, slurm: Slurm):
    read_status(run, slurm.states())
    assert [path.name for path in run.iterdir()] == ["config.json"]
    with owned(run):
        assert read_status(run, slurm.states()).state == "running"


@pytest.fixture
def program(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """status and list, with the Slurm of the test."""
    monkeypatch.setattr(job_states, "JobStates", slurm.states)
    app = typer.Typer()
    app.command("status")(command.status)
    app.command("list")(command.list_runs)
    return app


def test_the_command_shows_a_run_for_people_and_for_programs(
    run: Path, history: History, slurm: Slurm, program: typer.Typer
):
    history.add("submit 5")
    slurm.queue("5", "PENDING", reason="Priority")
    text = CliRunner().invoke(program, ["status", str(run)])
    assert text.exit_code == 0, text.output
    assert "test: queued" in text.output
    assert "5 PENDING (Priority)" in text.output
    shown = CliRunner().invoke(program, ["status", str(run), "--json"])
    data = msgspec.json.decode(shown.output)
    assert (data["state"], data["job"], data["reason"], data["pools"][0]["name"]) == ("queued", "5", "Priority", "cpu")


def test_the_command_knows_that_a_job_is_gone_where_there_is_no_accounting(
    run: Path, history: History, slurm: Slurm, program: typer.Typer
):
    history.add("submit 5")
    history.add("started 5")
    slurm.ended = None
    assert "test: lost" in CliRunner().invoke(program, ["status", str(run)]).output
    assert (
        msgspec.json.decode(CliRunner().invoke(program, ["list", str(run.parent), "--json"]).output)[0]["state"]
        == "lost"
    )


def test_a_watcher_shows_every_change_until_the_run_ends(
    run: Path, history: History, slurm: Slurm, program: typer.Typer, monkeypatch: pytest.MonkeyPatch
):
    def begin() -> None:
        history.add("started 5")
        slurm.lines.clear()
        slurm.queue("5", "RUNNING")

    changes = iter([lambda: None, begin, lambda: None, lambda: history.add("done 5")])
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=lambda _: next(changes)()))
    history.add("submit 5")
    slurm.queue("5", "PENDING")
    shown = CliRunner().invoke(program, ["status", str(run), "--watch", "--json"])
    assert shown.exit_code == 0, shown.output
    assert [msgspec.json.decode(line)["state"] for line in shown.output.splitlines()] == ["queued", "running", "done"]


def test_the_list_has_a_line_for_each_run(tmp_path: Path, program: typer.Typer):
    assert "no runs in" in CliRunner().invoke(program, ["list", str(tmp_path)]).output
    History(create(config_in(tmp_path / "one"))).add("failed")
    create(config_in(tmp_path / "two"))
    shown = CliRunner().invoke(program, ["list", str(tmp_path)]).output
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [["one", "failed"], ["two", "lost"]]
