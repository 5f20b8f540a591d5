"""How attempts end: real services, and small programs in the place of the controller and the workers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from rollart_hpc.bus import subjects
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.lease import LiveView
from rollart_hpc.bus.membership import Member, Membership
from rollart_hpc.launcher import expelled, restarts, silent_controller
from rollart_hpc.launcher.attempt_log import read_members
from rollart_hpc.launcher.failure import AttemptFailedError
from rollart_hpc.launcher.leader import AttemptEnd
from rollart_hpc.observe.failures import record_failure
from rollart_hpc.observe.metrics import write_summary
from rollart_hpc.resource_plane.records import Pool
from rollart_hpc.types import Role
from tests.integration.launcher.scripts import (
    DEADLINE_S,
    DIE,
    IGNORE,
    OBEY,
    STEPS,
    STOP,
    TALK,
    Attempted,
    until,
)


@pytest.fixture
async def attempt(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Attempted]:
    """With so many generation workers as the parameter says."""
    made = Attempted(tmp_path / "run", generators=getattr(request, "param", 1))
    yield made
    if made.task is not None and not made.is_over:
        made.stop.request("the test is over")
        await asyncio.wait({made.task}, timeout=DEADLINE_S)
    assert made.starter.running == []
    assert made.services == {}


async def failure(attempt: Attempted) -> AttemptFailedError:
    with pytest.raises(AttemptFailedError) as caught:
        await attempt.end()
    assert attempt.failures == [str(caught.value)]
    return caught.value


async def test_an_attempt_is_done_when_its_controller_has_written_so(attempt: Attempted):
    await attempt.begin()
    write_summary(attempt.directory, {"attempt": attempt.number, "steps": STEPS})
    attempt.starter.newest("controller").request_stop()
    assert await attempt.end() == AttemptEnd(stopped=False)
    assert attempt.events == ["done"]
    assert {(record.attempt, record.job, record.node) for record in attempt.records} == {(1, "12", "c1")}


@pytest.mark.parametrize(
    "summary",
    [{}, {"attempt": 1, "steps": STEPS - 1}, {"attempt": 7, "steps": STEPS}],
    ids=["no", "short", "another's"],
)
async def test_a_controller_that_ends_with_0_before_the_run_is_done_is_a_failure(
    attempt: Attempted, summary: dict[str, int]
):
    await attempt.begin()
    if summary:
        write_summary(attempt.directory, summary)
    attempt.starter.newest("controller").request_stop()
    error = await failure(attempt)
    assert str(error) == "controller ended with exit code 0 before the run was done"
    assert error.details == "ready"


async def test_a_controller_s_own_reason_is_told_instead_of_the_end_of_its_log(attempt: Attempted):
    await attempt.begin()
    record_failure(attempt.directory / "attempts" / "1" / "failures", "controller", ValueError("the reason\nin full"))
    os.kill(attempt.starter.newest("controller").pid, signal.SIGKILL)
    error = await failure(attempt)
    assert str(error) == "controller ended with killed by SIGKILL: ValueError: the reason"
    assert error.details == "in full"
    assert not error.is_wrong_input


async def test_a_controller_that_refuses_its_input_says_that_another_attempt_would_too(attempt: Attempted):
    await attempt.begin(controller="print('ready', flush=True); raise SystemExit(2)")
    assert (await failure(attempt)).is_wrong_input


async def test_srun_s_word_for_a_lost_node_is_the_reason_though_it_ends_with_0(attempt: Attempted):
    words = "print('ready', flush=True); time.sleep(0.5); print('srun: error: Node failure on h800-1'); print('more')"
    await attempt.begin(actor_train_0=f"import time; {words}")
    assert str(await failure(attempt)) == "actor_train-0 ended with exit code 0: Node failure on h800-1"


async def test_a_trainer_rank_ends_the_attempt(attempt: Attempted):
    await attempt.begin()
    os.kill(attempt.starter.newest("actor_train-0").pid, signal.SIGKILL)
    error = await failure(attempt)
    assert (str(error), error.details) == ("actor_train-0 ended with killed by SIGKILL", "")


# --- stops -----------------------------------------------------------------------------------------------


async def test_a_stop_reaches_the_controller_and_is_recorded_with_its_time(attempt: Attempted):
    await attempt.begin(controller=STOP)
    attempt.stop.request("leader: SIGUSR2")
    end = await attempt.end()
    assert end.stopped
    assert end.saved_s is not None
    assert 0 <= end.saved_s <= DEADLINE_S
    assert attempt.events == ["saved", "stopped"]
    assert attempt.records[-1].saved_s == end.saved_s


async def test_a_stop_reaches_the_controller_over_the_bus_where_signals_do_not(attempt: Attempted):
    await attempt.begin(controller=TALK, actor_gen_0=TALK)
    controller = attempt.starter.newest("controller")
    controller.request_stop = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    attempt.stop.request("somebody: SIGTERM")
    assert (await attempt.end()).saved_s is not None
    assert "heard leader: somebody: SIGTERM" in attempt.output("controller")


@pytest.mark.parametrize("name", ["actor_train-0", "environment-0", "reward-0", "controller"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
async def test_a_signal_at_any_process_stops_the_run_in_order(attempt: Attempted, name: str, number: signal.Signals):
    await attempt.begin(all=TALK)
    attempt.starter.grace_s = DEADLINE_S
    os.kill(attempt.starter.newest(name).pid, number)
    assert (await attempt.end()).saved_s is not None
    assert attempt.stop.reason == f"{name}: {number.name}"
    assert [process.exit_code for process in attempt.starter.started] == [75, 0, 0, 0, 0]
    assert {attempt.output(process.name)[-1] for process in attempt.starter.started} == {"ends in order"}


@pytest.mark.parametrize("name", ["actor_train-0", "environment-0"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
async def test_a_process_that_a_stop_signal_kills_before_it_can_listen_stops_the_run_in_order(
    attempt: Attempted, name: str, number: signal.Signals
):
    await attempt.begin(
        **{"controller": STOP, name.replace("-", "_"): "import signal\nsignal.signal(2, signal.SIG_DFL)\n" + DIE}
    )
    os.kill(attempt.starter.newest(name).pid, number)
    end = await attempt.end()
    assert end.stopped
    assert end.saved_s is not None
    assert attempt.stop.reason == f"{name}: {number.name}"
    assert len(attempt.starter.started) == 5


async def test_a_controller_that_the_signal_kills_before_it_can_listen_leaves_a_stopped_run(attempt: Attempted):
    await attempt.begin(controller=DIE)
    os.kill(attempt.starter.newest("controller").pid, signal.SIGTERM)
    end = await attempt.end()
    assert (end.stopped, end.saved_s) == (True, None)
    assert end.cause == "controller ended with killed by SIGTERM"
    assert attempt.events == ["stopped"]


async def test_a_controller_that_stops_by_itself_has_stopped_the_run(attempt: Attempted):
    await attempt.begin(controller="print('ready', flush=True); raise SystemExit(75)")
    assert (await attempt.end()).saved_s is not None
    assert attempt.stop.reason == "controller stopped"


async def test_a_controller_that_does_not_stop_is_killed_after_its_time(attempt: Attempted):
    await attempt.begin(controller=IGNORE)
    attempt.stop.request("leader: SIGTERM")
    end = await attempt.end()
    assert (end.stopped, end.saved_s) == (True, None)
    assert "did not stop within 5 s (run.stop_timeout_s) and was killed" in end.cause
    assert attempt.starter.newest("controller").exit_code == -signal.SIGKILL


async def test_a_controller_that_hangs_is_killed_and_the_attempt_says_why(
    attempt: Attempted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(silent_controller, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(silent_controller, "_SILENCE_S", 1.5)
    await attempt.begin(all=TALK)
    attempt.starter.grace_s = DEADLINE_S
    await asyncio.sleep(2.0)
    assert not attempt.is_over
    os.kill(attempt.starter.newest("controller").pid, signal.SIGSTOP)
    error = await failure(attempt)
    assert str(error).startswith("controller gave no sign of life for 1.5 s and is killed: it hangs")
    assert error.details == "ready"
    assert [process.exit_code for process in attempt.starter.started] == [-signal.SIGKILL, 0, 0, 0, 0]


async def test_a_controller_that_never_gave_a_sign_is_killed_too(attempt: Attempted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(silent_controller, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(silent_controller, "_FIRST_SIGN_S", 0.5)
    await attempt.begin(controller=IGNORE)
    assert str(await failure(attempt)).startswith("controller gave no sign of life for 0.5 s")


async def test_nothing_is_started_again_while_the_run_stops(attempt: Attempted):
    slow = OBEY + "import time\nwhile True: time.sleep(1)"
    await attempt.begin(controller=slow)
    attempt.stop.request("leader: SIGTERM")
    for name in ("actor_gen-0", "actor_train-0"):
        os.kill(attempt.starter.newest(name).pid, signal.SIGKILL)
    end = await attempt.end()
    assert "run.stop_timeout_s" in end.cause
    assert len(attempt.starter.started) == 5


async def test_processes_that_are_killed_with_the_run_s_own_notice_are_no_failure(attempt: Attempted):
    """As srun does to its task when Slurm ends the whole job: what is killed first is seen first."""
    await attempt.begin(controller=STOP)
    os.kill(attempt.starter.newest("actor_train-0").pid, signal.SIGKILL)
    await asyncio.sleep(0.2)
    attempt.stop.request("leader: SIGTERM")
    end = await attempt.end()
    assert (end.stopped, end.cause) == (True, "actor_train-0 ended with killed by SIGKILL")
    assert attempt.failures == []


async def test_a_stop_before_the_attempt_has_begun_starts_nothing(attempt: Attempted):
    attempt.stop.request("leader: SIGTERM")
    await attempt.begin()
    assert (await attempt.end()).stopped
    assert attempt.starter.started == []


# --- the end of all ----------------------------------------------------------------------------------------


async def test_what_does_not_end_when_it_is_over_is_killed(attempt: Attempted):
    await attempt.begin(all=TALK, environment_0=IGNORE)
    os.kill(attempt.starter.newest("actor_train-0").pid, signal.SIGKILL)
    attempt.starter.grace_s = 5.0
    await failure(attempt)
    exits = {process.name: process.exit_code for process in attempt.starter.started}
    assert exits == {
        "controller": -signal.SIGKILL,
        "actor_train-0": -signal.SIGKILL,
        "actor_gen-0": 0,
        "environment-0": -signal.SIGKILL,
        "reward-0": 0,
    }


@pytest.mark.parametrize("way", ["done", "stopped", "failed"])
async def test_every_end_of_an_attempt_frees_all_of_its_processes(attempt: Attempted, way: str):
    """The workers hear neither that it is over nor any signal."""
    await attempt.begin(all=IGNORE, controller=STOP if way == "stopped" else OBEY)
    services = list(attempt.services.values())
    write_summary(attempt.directory, {"attempt": attempt.number, "steps": STEPS if way == "done" else 1})
    if way == "stopped":
        attempt.stop.request("leader: SIGTERM")
    else:
        attempt.starter.newest("controller").request_stop()
    if way == "failed":
        await failure(attempt)
    else:
        assert (await attempt.end()).stopped == (way == "stopped")
    exits = [process.exit_code for process in attempt.starter.started]
    assert exits == [75 if way == "stopped" else 0, *[-signal.SIGKILL] * 4]
    assert len(services) == 3
    assert not any(service.is_running() for service in services)


# --- restarts ----------------------------------------------------------------------------------------------


async def test_a_replaceable_worker_is_started_again_until_its_restarts_are_used_up(attempt: Attempted):
    await attempt.begin(actor_gen_0="print('ready', flush=True); raise SystemExit(9)")
    error = await failure(attempt)
    assert str(error) == "actor_gen-0 ended with exit code 9, after 5 restarts"
    assert error.details == "\n".join(["ready"] * 6)
    assert [process.name for process in attempt.starter.started].count("actor_gen-0") == 6
    assert "actor_gen-0 ended with exit code 9; starting it again" in attempt.screen.getvalue()


@pytest.mark.parametrize("attempt", [2], indirect=True)
async def test_a_worker_that_ends_again_and_again_is_given_up_while_its_role_has_another_one(
    attempt: Attempted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(restarts, "MAX_RESTARTS", 1)
    await attempt.begin(controller=STOP)
    bus = await Bus.connect(attempt.file.bus, "test")
    pools = LiveView(bus, subjects.POOLS_BUCKET, Pool)
    watching = asyncio.create_task(pools.run())
    planned = {Role.ACTOR_TRAIN: 1, Role.ACTOR_GEN: 2, Role.ENVIRONMENT: 1, Role.REWARD: 1}
    try:
        await pools.wait_until(lambda: bool(pools.all()), DEADLINE_S)
        (pool,) = pools.all().values()
        assert (pool.name, pool.hardware, pool.planned) == ("all", "cpu", planned)
        attempt.starter.newest("actor_gen-1").kill()
        await until(lambda: len(attempt.starter.started) == 7)
        assert pools.all()["all"].planned == planned
        attempt.starter.newest("actor_gen-1").kill()
        await until(lambda: "given_up" in attempt.events)
        await pools.wait_until(lambda: pools.all()["all"].planned[Role.ACTOR_GEN] == 1, DEADLINE_S)
        assert pools.all()["all"].planned == planned | {Role.ACTOR_GEN: 1}
        (record,) = attempt.records
        assert record.cause.startswith("actor_gen-1 ended with killed by SIGKILL, after")
        assert f"{record.cause}; the run goes on without it" in attempt.screen.getvalue()
        assert len(attempt.starter.running) == 5
        attempt.starter.newest("actor_gen-0").kill()
        await until(lambda: len(attempt.starter.started) == 8)
        attempt.starter.newest("actor_gen-0").kill()
        assert str(await failure(attempt)).startswith("actor_gen-0 ended with killed by SIGKILL, after")
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await bus.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2])
async def test_a_bus_that_dies_is_started_again_with_all_that_was_in_it(attempt: Attempted, number: signal.Signals):
    """TERM ends nats-server; USR2 lets it stop its streams and wait for its clients to go."""
    await attempt.begin(all=TALK)
    attempt.starter.grace_s = DEADLINE_S
    bus = await Bus.connect(attempt.file.bus, "test")
    try:
        await (await bus.bucket("kept")).put("key", b"value")
        before = attempt.services["nats-server"]
        before.send_signal(number)
        await until(lambda: attempt.services.get("nats-server", before) != before)
        async with asyncio.timeout(DEADLINE_S):
            assert (await (await bus.bucket("kept")).get("key")).value == b"value"
    finally:
        await bus.close()
    os.kill(attempt.starter.newest("reward-0").pid, signal.SIGTERM)
    assert (await attempt.end()).saved_s is not None
    # Whoever is back first hears it first.
    assert attempt.stop.reason in ("reward-0: SIGTERM", "controller stopped")
    assert len(attempt.starter.started) == 5
    assert attempt.records[-1].restarts == {"nats-server": 1}
    if number == signal.SIGUSR2:  # nobody waits for a server that waits for its clients
        assert "nats-server ended with killed by SIGKILL" in attempt.screen.getvalue()
    assert [process.exit_code for process in attempt.starter.started] == [75, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["mooncake_master", "mooncake_client"])
async def test_a_weight_store_that_dies_is_started_again_and_its_loss_is_told(attempt: Attempted, name: str):
    await attempt.begin(controller=STOP)
    bus = await Bus.connect(attempt.file.bus, "test")
    lost = asyncio.Event()

    async def receive(_: object) -> None:
        lost.set()

    try:
        await bus.subscribe("store", receive)
        before = {process.pid for process in attempt.services.values()}
        attempt.services[name].kill()
        await asyncio.wait_for(lost.wait(), DEADLINE_S)
        after = attempt.services
        assert len({process.pid for process in after.values()} - before) == 2
        assert len(after) == 3
    finally:
        await bus.close()
    attempt.stop.request("leader: SIGTERM")
    assert (await attempt.end()).saved_s is not None
    assert attempt.records[-1].restarts == {name: 1}


async def test_a_service_that_dies_again_and_again_ends_the_attempt(
    attempt: Attempted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(restarts, "MAX_RESTARTS", 1)
    await attempt.begin()
    while not attempt.is_over:
        if server := attempt.services.get("nats-server"):
            server.kill()
        await asyncio.sleep(0.5)
    assert str(await failure(attempt)).startswith("nats-server ended with killed by SIGKILL, after")


async def test_everything_told_to_end_at_once_still_saves(attempt: Attempted):
    """As scancel does: the services end of it and are started again; the run saves in the time that is left."""
    await attempt.begin(all=TALK)
    attempt.starter.grace_s = DEADLINE_S
    for process in (*attempt.services.values(), *map(_process, attempt.starter.started)):
        process.terminate()
    attempt.stop.request("leader: SIGTERM")
    end = await attempt.end()
    assert end.saved_s is not None
    assert [process.exit_code for process in attempt.starter.started] == [75, 0, 0, 0, 0]


def _process(process: object) -> psutil.Process:
    return psutil.Process(process.pid)  # pyright: ignore[reportAttributeAccessIssue]


# --- members -----------------------------------------------------------------------------------------------


async def test_members_are_recorded_and_one_that_hangs_without_its_membership_is_killed(
    attempt: Attempted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(expelled, "_GRACE_S", 0.3)
    await attempt.begin(controller=STOP, environment_0=IGNORE, reward_0=IGNORE)
    hung, healthy = attempt.starter.newest("environment-0"), attempt.starter.newest("reward-0")
    # Behind srun, a member's process id is not that of the process that the leader started.
    await joined_and_left(
        attempt, Member(member_id="environment-0", role=Role.ENVIRONMENT, hardware="cpu", node="n", pid=1)
    )
    await until(lambda: hung.exit_code is not None)
    await until(lambda: len(attempt.starter.started) == 6)
    assert hung.exit_code == -signal.SIGKILL
    assert healthy.exit_code is None
    assert attempt.starter.newest("environment-0").exit_code is None
    assert "environment-0 is no member any more and does not end; it is killed" in attempt.screen.getvalue()
    members = read_members(attempt.directory, attempt.number)
    assert [(member.member_id, member.event) for member in members] == [
        ("environment-0", "joined"),
        ("environment-0", "left"),
    ]
    attempt.stop.request("leader: SIGTERM")
    await attempt.end()
    assert attempt.records[-1].restarts == {"environment-0": 1}


async def test_a_worker_that_srun_kills_for_the_leader_is_no_notice(
    attempt: Attempted, monkeypatch: pytest.MonkeyPatch
):
    """A step is killed by TERM at its srun, whose exit code says so."""
    monkeypatch.setattr(expelled, "_GRACE_S", 0.3)
    await attempt.begin(environment_0=DIE)
    hung = attempt.starter.newest("environment-0")
    hung._kill_signal = signal.SIGTERM
    await joined_and_left(
        attempt, Member(member_id="environment-0", role=Role.ENVIRONMENT, hardware="cpu", node="n", pid=1)
    )
    await until(lambda: len(attempt.starter.started) == 6)
    assert hung.exit_code == -signal.SIGTERM
    assert not attempt.stop.is_set


async def test_a_worker_that_is_again_a_member_in_time_lives_on(attempt: Attempted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(expelled, "_GRACE_S", 0.5)
    await attempt.begin(controller=STOP)
    process = attempt.starter.newest("environment-0")
    member = Member(member_id="environment-0", role=Role.ENVIRONMENT, hardware="cpu", node="n", pid=process.pid)
    await joined_and_left(attempt, member, rejoins=True)
    await asyncio.sleep(1.0)
    assert process.exit_code is None
    attempt.stop.request("leader: SIGTERM")
    await attempt.end()
    assert attempt.records[-1].restarts == {}


async def joined_and_left(attempt: Attempted, member: Member, *, rejoins: bool = False) -> None:
    """Plays a worker on the attempt's bus, until the leader has seen what it did."""
    bus = await Bus.connect(attempt.file.bus, "test")
    try:
        for number in (1, 2) if rejoins else (1,):
            membership = Membership(bus, member)
            await membership.join()
            await until(lambda: len(read_members(attempt.directory, 1)) == 2 * number - 1)  # noqa: B023
            if rejoins and number == 2:
                return
            await membership.leave()
            await until(lambda: len(read_members(attempt.directory, 1)) == 2 * number)  # noqa: B023
    finally:
        await bus.close()
