"""When a worker's process ends, and what it does when it is told to stop. The process is a real one."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rollart_hpc.bus import subjects
from rollart_hpc.bus.calls import call
from rollart_hpc.bus.codec import decode, encode
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, Membership, MemberView
from rollart_hpc.bus.server import NatsServer
from rollart_hpc.data_plane.stopping import Notice, hear_notices
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.processes import ManagedProcess
from rollart_hpc.types import Role
from tests.builders import run_config

DEADLINE_S = 60
Start = Callable[..., Awaitable[ManagedProcess]]


@pytest.fixture
async def start(server: NatsServer, tmp_path: Path) -> AsyncIterator[Start]:
    started: list[ManagedProcess] = []

    async def begin(mode: str = "", **run: object) -> ManagedProcess:
        config = run_config().model_dump(mode="json")
        config["run"] |= run
        attempt = Attempt(run_directory=str(tmp_path), number=1, bus=server.endpoint, store=None, config=config)
        argv = [sys.executable, str(Path(__file__).with_name("small_worker.py")), str(attempt.write()), mode]
        started.append(await ManagedProcess.start("worker", argv, log=tmp_path / "worker.log", environment=os.environ))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        await process.wait()


@pytest.fixture
async def notices(bus: Bus) -> list[Notice]:
    heard: list[Notice] = []
    await hear_notices(bus, heard.append)
    return heard


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def exit_code(process: ManagedProcess) -> int:
    return await asyncio.wait_for(process.wait(), DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
async def test_a_worker_that_is_told_to_stop_says_so_again_and_again_and_serves_on_to_the_end(
    start: Start, bus: Bus, view: MemberView, notices: list[Notice], number: signal.Signals
):
    process = await start()
    await view.wait_for(Role.REWARD, 1, DEADLINE_S)
    os.kill(process.pid, number)
    await until(lambda: len(notices) >= 1)
    for other in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        os.kill(process.pid, other)
    await until(lambda: len(notices) >= 3)
    assert {(notice.who, notice.reason, notice.at) for notice in notices} == {("reward-0", number.name, notices[0].at)}
    assert decode(await call(bus, "reward-0", "double", encode((21,)), deadline_s=10), int) == 42
    await bus.nc.publish(subjects.END)
    assert await exit_code(process) == 0
    assert process.tail().endswith("closed")
    assert view.get("reward-0") is None


@pytest.mark.parametrize(("mode", "sign"), [("slow start", "starting"), ("slow setup", "setting up")])
async def test_a_signal_during_the_start_is_remembered(
    start: Start, bus: Bus, notices: list[Notice], mode: str, sign: str
):
    process = await start(mode)
    await until(lambda: sign in process.tail())
    os.kill(process.pid, signal.SIGTERM)
    await until(lambda: len(notices) >= 2)
    await bus.nc.publish(subjects.END)
    assert await exit_code(process) == 0


async def test_a_worker_ends_when_the_stop_that_it_was_told_of_never_comes_to_its_end(start: Start, view: MemberView):
    process = await start("impatient", stop_timeout_s=0.5)
    await view.wait_for(Role.REWARD, 1, DEADLINE_S)
    os.kill(process.pid, signal.SIGTERM)
    assert await exit_code(process) == 0
    assert "has not come to its end; this process ends" in process.tail()


async def test_a_worker_outlives_its_bus_for_a_while_and_not_for_ever(
    start: Start, server: NatsServer, view: MemberView, tmp_path: Path
):
    process = await start("lonely")
    await view.wait_for(Role.REWARD, 1, DEADLINE_S)
    os.kill(server.process.pid, signal.SIGKILL)
    await server.process.wait()
    assert await exit_code(process) == 1
    assert "the bus was away for 2 s" in (tmp_path / "attempts" / "1" / "failures" / "reward-0.txt").read_text()


async def test_a_worker_that_does_not_close_ends_all_the_same(start: Start, bus: Bus, view: MemberView):
    process = await start("slow close")
    await view.wait_for(Role.REWARD, 1, DEADLINE_S)
    await bus.nc.publish(subjects.END)
    assert await exit_code(process) == 0
    assert "reward-0 did not close within 0.2 s" in process.tail()


async def test_a_thread_that_was_given_up_does_not_hold_its_process(start: Start, tmp_path: Path):
    process = await start("stuck thread")
    assert await exit_code(process) == 1
    assert "TimeoutError" in (tmp_path / "attempts" / "1" / "failures" / "reward-0.txt").read_text()


# --- guests ----------------------------------------------------------------------------------------------


async def test_a_guest_that_is_told_to_stop_ends_its_work_and_leaves_and_the_run_does_not_hear_of_it(
    start: Start, bus: Bus, view: MemberView, notices: list[Notice]
):
    process = await start("guest")
    (member,) = await view.wait_for(Role.REWARD, 1, DEADLINE_S)
    assert (member.guest, member.leaving) == (True, False)
    await call(bus, "reward-0", "work", encode((3,)), deadline_s=10)
    os.kill(process.pid, signal.SIGTERM)
    await until(lambda: (now := view.get("reward-0")) is not None and now.leaving and now.load == 3)
    for other in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        os.kill(process.pid, other)
    assert decode(await call(bus, "reward-0", "double", encode((21,)), deadline_s=10), int) == 42
    assert process.exit_code is None
    await call(bus, "reward-0", "work", encode((0,)), deadline_s=10)
    assert await exit_code(process) == 0
    assert process.tail().endswith("closed")
    assert view.get("reward-0") is None
    assert notices == []


async def test_a_guest_whose_work_does_not_end_leaves_all_the_same(start: Start, view: MemberView):
    process = await start("guest for ever busy")
    await view.wait_for(Role.REWARD, 1, DEADLINE_S)
    os.kill(process.pid, signal.SIGTERM)
    assert await exit_code(process) == 0
    assert "reward-0 did not end its work within 0.5 s; others do it again" in process.tail()


async def test_a_guest_that_is_told_to_stop_before_it_serves_never_joins(
    start: Start, bus: Bus, view: MemberView, notices: list[Notice]
):
    joined: list[Member | None] = []
    view.listen(lambda _, after: joined.append(after))
    process = await start("guest slow setup")
    await until(lambda: "setting up" in process.tail())
    os.kill(process.pid, signal.SIGTERM)
    assert await exit_code(process) == 0
    assert (joined, notices) == ([], [])


async def test_a_guest_ends_with_the_attempt(start: Start, bus: Bus, view: MemberView):
    process = await start("guest")
    await view.wait_for(Role.REWARD, 1, DEADLINE_S)
    await bus.nc.publish(subjects.END)
    assert await exit_code(process) == 0


async def test_a_guest_takes_no_other_process_s_name(start: Start, bus: Bus, view: MemberView, tmp_path: Path):
    other = Member(member_id="reward-0", role=Role.REWARD, hardware="cpu", node="n", pid=1)
    await Membership(bus, other).join()
    process = await start("guest")
    assert await exit_code(process) == 1
    failure = (tmp_path / "attempts" / "1" / "failures" / "reward-0.txt").read_text()
    assert failure == "NameTakenError: reward-0 is there already, in another process"
    assert view.get("reward-0") == other
