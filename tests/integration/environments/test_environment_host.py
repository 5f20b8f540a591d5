"""Environments that misbehave in every way, beside one that does not."""

import asyncio
import errno
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from rollart_hpc.data_plane import environment_process
from rollart_hpc.data_plane.environment_host import EnvironmentHost
from rollart_hpc.data_plane.environment_process import EnvironmentSpec
from rollart_hpc.errors import ConfigError, EnvironmentFault

USER_CODE = '''
import math, multiprocessing, os, subprocess, sys, time
from rollart_hpc.interfaces import EnvironmentProperties

class Faulty:
    """Counts its episodes and steps; does on command what environments should not do."""
    properties = EnvironmentProperties(replayable=True)
    instances = 0

    def __init__(self, *, reset_fault=""):
        Faulty.instances += 1
        self.reset_fault, self.episodes = reset_fault, 0

    def __len__(self):
        return 0

    def reset(self, *, seed, task):
        self.episodes += 1
        self.commit(self.reset_fault)
        return f"seed {seed}", {"pid": os.getpid(), "instances": Faulty.instances, "episodes": self.episodes}

    def step(self, action):
        answer = self.commit(action)
        return answer if answer is not None else (f"did {action}", 0.5, False, False, {"tuple": (1, 2)})

    def close(self):
        print("closed", flush=True)

    def commit(self, fault):
        if fault == "hang":
            time.sleep(60)
        if fault == "start a program":
            return str(subprocess.Popen(["sleep", "61"]).pid), 0.0, False, False, {}
        if fault == "raise":
            raise RuntimeError("out of luck")
        if fault == "exit":
            sys.exit(3)
        if fault == "die":
            os._exit(7)
        if fault == "terminate own program":
            program = subprocess.Popen(["sleep", "62"])
            program.terminate()
            return f"ended by {program.wait(5)}", 0.0, False, False, {}
        if fault == "terminate own fork":
            fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(63,))
            fork.start()
            fork.terminate()
            fork.join(5)
            return f"ended by {fork.exitcode}", 0.0, False, False, {}
        if fault == "print":
            print("x" * 100_000, flush=True)
            os.write(1, b"raw")
        return {
            "no text": (None, 0.0, False, False, {}),
            "surrogate": ("\\ud800", 0.0, False, False, {}),
            "no flag": ("", 0.0, 1, False, {}),
            "NaN": ("", math.nan, False, False, {}),
            "no number": ("", "1", False, False, {}),
            "rich info": ("", 0.0, False, False, {"object": self}),
            "short": ("", 0.0, False),
        }.get(fault)

class Light(Faulty):
    properties = EnvironmentProperties(light=True)

class Undeclared(Faulty):
    properties = {"light": True}
'''
RESET_S, STEP_S = 20.0, 1.0


@pytest.fixture(autouse=True)
def _user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty_lake.py").write_text(USER_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faulty_lake", raising=False)


def spec(name: str = "Faulty", *, reset_timeout_s: float = RESET_S, **args: str) -> EnvironmentSpec:
    return EnvironmentSpec(
        entry_point=f"faulty_lake:{name}", args=args, reset_timeout_s=reset_timeout_s, step_timeout_s=STEP_S
    )


def children() -> list[psutil.Process]:
    """Live descendants, but for what Python's multiprocessing keeps beside a process that has used it."""
    alive = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if not any("resource_tracker" in word for word in child.cmdline())]


async def play_on(host: EnvironmentHost, until: asyncio.Event) -> int:
    """Steps a well-behaved environment until told to stop."""
    steps = 0
    async with host.open("good") as session:
        await session.reset(1)
        while not until.is_set() or steps < 10:
            assert (await session.step("walk")).observation == "did walk"
            steps += 1
    return steps


async def fault_of(host: EnvironmentHost, task: str, action: str) -> EnvironmentFault:
    with pytest.raises(EnvironmentFault) as caught:
        async with host.open(task) as session:
            await session.reset(0)
            await session.step(action)
    return caught.value


@pytest.mark.parametrize(
    ("action", "cause", "detail"),
    [
        ("hang", "step_timeout", "1 s"),
        ("raise", "raised", "RuntimeError: out of luck"),
        ("exit", "raised", "SystemExit: 3"),
        ("die", "died", "exit status 7"),
        ("no text", "bad_type", "expected text"),
        ("surrogate", "bad_type", "not valid Unicode"),
        ("no flag", "bad_type", "terminated"),
        ("NaN", "bad_type", "finite number"),
        ("no number", "bad_type", "finite number"),
        ("rich info", "bad_type", "plain values"),
        ("short", "bad_type", "expected (observation, reward"),
    ],
)
async def test_each_fault_has_its_cause_and_the_other_environment_goes_on(action: str, cause: str, detail: str) -> None:
    stop = asyncio.Event()
    async with EnvironmentHost({"good": spec(), "bad": spec()}, max_children=4) as host:
        good = asyncio.create_task(play_on(host, stop))
        begin = time.monotonic()
        fault = await fault_of(host, "bad", action)
        seconds = time.monotonic() - begin
        stop.set()
        assert await good >= 10
    assert (fault.cause, detail in str(fault)) == (cause, True), fault
    assert seconds < 30, "what hangs, hangs for 60 s"
    assert not children()


@pytest.mark.parametrize(
    ("fault", "cause"), [("hang", "reset_timeout"), ("raise", "raised"), ("die", "died"), ("exit", "raised")]
)
async def test_faults_in_reset(fault: str, cause: str) -> None:
    async with EnvironmentHost({"bad": spec(reset_fault=fault, reset_timeout_s=2.0)}, max_children=1) as host:
        begin = time.monotonic()
        assert (await fault_of(host, "bad", "")).cause == cause
        assert time.monotonic() - begin < 30, "what hangs, hangs for 60 s"
    assert not children()


async def test_what_user_code_prints_does_not_disturb(capfd: pytest.CaptureFixture[str]) -> None:
    async with EnvironmentHost({"good": spec()}, max_children=1) as host, host.open("good") as session:
        await session.reset(0)
        transition = await session.step("print")
    assert transition.observation == "did print"
    assert transition.info == {"tuple": [1, 2]}
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "raw" in captured.err


async def test_a_process_and_its_environment_are_used_again_until_a_fault() -> None:
    async with EnvironmentHost({"good": spec(), "same": spec()}, max_children=1) as host:
        seen = []
        for task in ("good", "same", "good"):
            async with host.open(task) as session:
                seen.append((await session.reset(0)).info)
        await fault_of(host, "good", "raise")
        async with host.open("good") as session:
            fresh = (await session.reset(0)).info
    assert [info["episodes"] for info in seen] == [1, 2, 3]
    assert len({info["pid"] for info in seen}) == 1
    assert seen[-1]["instances"] == 1
    assert (fresh["episodes"], fresh["pid"] != seen[0]["pid"]) == (1, True)


async def test_no_more_processes_run_than_allowed() -> None:
    specs = {"a": spec(), "b": spec(reset_fault="print")}

    async def play(host: EnvironmentHost, task: str) -> str:
        async with host.open(task) as session:
            await session.reset(0)
            assert len([child for child in children() if child.status() != psutil.STATUS_ZOMBIE]) <= 3
            return (await session.step("walk")).observation

    async with EnvironmentHost(specs, max_children=2) as host:
        assert await asyncio.gather(*(play(host, task) for task in "abababab")) == ["did walk"] * 8
    assert not children()


async def test_a_cancelled_call_costs_its_process() -> None:
    async with EnvironmentHost({"good": spec()}, max_children=1) as host:

        async def hang() -> None:
            async with host.open("good") as session:
                await session.reset(0)
                in_step.set()
                await session.step("hang")

        in_step = asyncio.Event()
        running = asyncio.create_task(hang())
        await in_step.wait()
        (before,) = children()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with host.open("good") as session:
            assert (await session.reset(0)).info["pid"] != before.pid
        assert not before.is_running()


@pytest.mark.parametrize("fault", ["hang", "die"])
async def test_what_an_environment_started_ends_with_it(fault: str) -> None:
    async with EnvironmentHost({"bad": spec()}, max_children=1) as host, host.open("bad") as session:
        await session.reset(0)
        program = psutil.Process(int((await session.step("start a program")).observation))
        with pytest.raises(EnvironmentFault):
            await session.step(fault)
        gone, _ = await asyncio.to_thread(psutil.wait_procs, [program], timeout=5)
        assert gone


async def test_signals_to_the_whole_step_do_not_touch_children() -> None:
    async with EnvironmentHost({"good": spec()}, max_children=1) as host, host.open("good") as session:
        pid = (await session.reset(0)).info["pid"]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            os.kill(pid, number)
        assert (await session.step("walk")).observation == "did walk"


async def test_environments_may_close_and_busy_ones_are_killed(capfd: pytest.CaptureFixture[str]) -> None:
    host = EnvironmentHost({"idle": spec(), "busy": spec(reset_fault="print")}, max_children=2)
    await host.start()

    async def hang() -> None:
        async with host.open("busy") as session:
            await session.reset(0)
            in_step.set()
            await session.step("hang")

    in_step = asyncio.Event()
    running = asyncio.create_task(hang())
    await in_step.wait()
    async with host.open("idle") as session:
        await session.reset(0)
    begin = time.monotonic()
    await host.close()
    assert time.monotonic() - begin < 30, "what hangs, hangs for 60 s"
    assert not children()
    with pytest.raises(EnvironmentFault, match="died"):
        await running
    assert capfd.readouterr().err.count("closed") == 1


PARENT = """
import asyncio
from rollart_hpc.data_plane.environment_host import EnvironmentHost
from rollart_hpc.data_plane.environment_process import EnvironmentSpec

async def main():
    spec = EnvironmentSpec(entry_point="faulty_lake:Faulty", reset_timeout_s=10, step_timeout_s=60)
    async with EnvironmentHost({"task": spec}, max_children=1) as host, host.open("task") as session:
        print((await session.reset(0)).info["pid"], flush=True)
        await session.step("hang")

asyncio.run(main())
"""


async def test_a_child_that_hangs_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [child], timeout=5)
    assert gone


async def test_programs_that_an_environment_starts_hear_signals_again() -> None:
    async with EnvironmentHost({"good": spec()}, max_children=1) as host, host.open("good") as session:
        await session.reset(0)
        assert (await session.step("terminate own program")).observation == "ended by -15"
        assert (await session.step("terminate own fork")).observation == "ended by -15"


async def test_a_light_environment_runs_here_and_is_guarded_too() -> None:
    async with EnvironmentHost({"light": spec("Light")}, max_children=1) as host:
        assert host.properties("light").light
        for action, cause in (("raise", "raised"), ("no text", "bad_type"), ("exit", "raised")):
            assert (await fault_of(host, "light", action)).cause == cause
        async with host.open("light") as session:
            assert (await session.reset(0)).info["pid"] == os.getpid()
            assert (await session.step("walk")).observation == "did walk"


async def test_a_class_that_is_not_light_is_never_imported_here() -> None:
    async with EnvironmentHost({"good": spec()}, max_children=1) as host:
        assert host.properties("good").replayable
        assert "faulty_lake" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"), [("Fualty", "did you mean 'Faulty'"), ("Undeclared", "EnvironmentProperties")]
)
async def test_a_wrong_class_is_a_config_error_at_start(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await EnvironmentHost({"bad": spec(name)}, max_children=1).start()
    assert not children()


def test_arguments_that_no_child_can_be_given_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"arguments of a:B cannot be given to another process: .*at most 64 bits"):
        EnvironmentSpec(entry_point="a:B", args={"n": 2**64}, reset_timeout_s=1.0, step_timeout_s=1.0)


async def test_a_process_that_cannot_be_started_costs_a_session_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    async def play(host: EnvironmentHost) -> str:
        async with host.open("bad") as session:
            await session.reset(0)
            return (await session.step("walk")).observation

    async with EnvironmentHost({"bad": spec()}, max_children=3) as host:
        with monkeypatch.context() as patched:
            patched.setattr(environment_process.ChildProcess, "start", full)
            # Two wait for the one process that there is.
            assert await asyncio.gather(*(play(host) for _ in range(3))) == ["did walk"] * 3
            assert (await fault_of(host, "bad", "die")).cause == "died"
            with pytest.raises(EnvironmentFault, match="unavailable: no process for faulty_lake:Faulty can be started"):
                await play(host)
            await asyncio.sleep(0)
        assert await play(host) == "did walk"


async def test_sessions_that_waited_for_a_process_hear_when_none_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with EnvironmentHost({"bad": spec()}, max_children=1) as host:
        async with host.open("bad") as session:
            await session.reset(0)
            waiting = asyncio.ensure_future(fault_of(host, "bad", "walk"))
            await asyncio.sleep(0)
            monkeypatch.setattr(environment_process.ChildProcess, "start", full)
            with pytest.raises(EnvironmentFault, match="died"):
                await session.step("die")
        assert (await asyncio.wait_for(waiting, 10)).cause == "unavailable"
