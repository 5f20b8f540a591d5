"""Classes whose instances live side by side in one child: what one suffers, the others do not."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from rollart_hpc.data_plane import environment_pool, environment_process, environment_session
from rollart_hpc.data_plane.environment_host import EnvironmentHost, EnvironmentSession, try_environment
from rollart_hpc.data_plane.environment_process import EnvironmentSpec
from rollart_hpc.errors import ConfigError, EnvironmentFault

USER_CODE = '''
import os, random, threading, time
from pathlib import Path
from rollart_hpc.errors import SandboxError
from rollart_hpc.interfaces import EnvironmentProperties

class Draws:
    """Draws from the global random state, which its reset seeds; does on command what it should not."""
    properties = EnvironmentProperties(shares_process=True, replayable=True)

    def __init__(self, *, marks=""):
        self.marks, self.is_closed = marks, False

    def reset(self, *, seed, task):
        random.seed(seed)
        if self.marks:
            self.mark(seed)
        return f"seed {seed} {random.random()}", {"pid": os.getpid(), "task": task}

    def mark(self, seed):
        """Fails as often as there are files, taking one away each time."""
        for path in sorted(Path(self.marks).glob("*")):
            path.unlink(missing_ok=True)
            if path.name.startswith("die"):
                os._exit(7)
            raise SandboxError("no room for one more")

    def step(self, action):
        if action == "hang":
            time.sleep(60)
        if action == "die":
            os._exit(7)
        if action == "raise":
            raise RuntimeError("out of luck")
        if action.startswith("sleep"):
            time.sleep(float(action.split()[1]))
        if action == "say your process":
            return str(os.getpid()), 0.0, False, False, {}
        return f"{action} {random.random()}", 0.0, False, False, {"pid": os.getpid()}

    def close(self):
        pass

class Paying(Draws):
    def step(self, action):
        super().step(action)
        return "", float(os.environ.get("PAID", "-1.0")), False, False, {}

class Plain(Draws):
    properties = EnvironmentProperties(shares_process=True)

class Meeting(Draws):
    """Waits in its step until all others of the process are there."""
    properties = EnvironmentProperties(thread_safe=True, replayable=False)
    barrier = threading.Barrier(8)

    def step(self, action):
        if action == "meet":
            self.barrier.wait(10)
        return super().step(action)
'''


@pytest.fixture(autouse=True)
def _user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared_lake.py").write_text(USER_CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(environment_session, "_FIRST_PAUSE_S", 0.01)


def spec(name: str = "Draws", *, step_timeout_s: float = 20.0, **args: str) -> EnvironmentSpec:
    return EnvironmentSpec(
        entry_point=f"shared_lake:{name}", args=args, reset_timeout_s=30.0, step_timeout_s=step_timeout_s
    )


def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sessions as possible come into one child."""
    monkeypatch.setattr(environment_pool.os, "sched_getaffinity", lambda _: {0})


async def pids_of(sessions: list[EnvironmentSession]) -> list[int]:
    return [(await session.step("where")).info["pid"] for session in sessions]


async def opened(stack: AsyncExitStack, host: EnvironmentHost, number: int) -> list[EnvironmentSession]:
    return [await stack.enter_async_context(host.open("a")) for _ in range(number)]


async def played(session: EnvironmentSession, seed: int, turns: int = 5) -> list[str]:
    begin = (await session.reset(seed)).observation
    return [begin, *[(await session.step(f"turn {turn}")).observation for turn in range(turns)]]


async def test_instances_of_one_child_have_their_own_random_states(monkeypatch: pytest.MonkeyPatch):
    one_core(monkeypatch)
    async with EnvironmentHost({"a": spec()}, max_children=1) as host:
        async with host.open("a") as session:
            alone = [await played(session, seed) for seed in range(6)]
        async with AsyncExitStack() as stack:
            sessions = await opened(stack, host, 6)
            together = await asyncio.gather(*(played(one, seed) for seed, one in enumerate(sessions)))
            assert len(set(await pids_of(sessions))) == 1
    assert together == alone
    assert "shared_lake" not in sys.modules


async def test_a_session_that_raises_costs_its_siblings_nothing(monkeypatch: pytest.MonkeyPatch):
    one_core(monkeypatch)
    async with EnvironmentHost({"a": spec("Plain")}, max_children=1) as host, AsyncExitStack() as stack:
        bad, good = await opened(stack, host, 2)
        await bad.reset(1)
        await good.reset(2)
        with pytest.raises(EnvironmentFault, match=r"raised: .*out of luck"):
            await bad.step("raise")
        (pid,) = await pids_of([good])
        async with host.open("a") as fresh:
            assert (await fresh.reset(3)).info["pid"] == pid


@pytest.mark.parametrize(("action", "cause"), [("hang", "step_timeout"), ("die", "died")])
async def test_siblings_of_one_that_hangs_or_dies_are_rebuilt(action: str, cause: str, monkeypatch: pytest.MonkeyPatch):
    one_core(monkeypatch)
    async with EnvironmentHost({"a": spec(step_timeout_s=1.0)}, max_children=2) as host, AsyncExitStack() as stack:
        async with host.open("a") as session:
            expected = [await played(session, seed) for seed in range(4)]
        sessions = await opened(stack, host, 5)
        for seed, session in enumerate(sessions):
            await session.reset(seed)
            await session.step("turn 0")
        bad = asyncio.create_task(sessions.pop().step(action))
        await asyncio.sleep(0)
        said = await asyncio.gather(*(on_from_turn_1(one) for one in sessions))
        with pytest.raises(EnvironmentFault) as caught:
            await bad
    assert caught.value.cause == cause
    assert said == [whole[2:] for whole in expected]


async def on_from_turn_1(session: EnvironmentSession) -> list[str]:
    return [(await session.step(f"turn {turn}")).observation for turn in range(1, 5)]


async def test_siblings_that_wait_for_a_slow_one_move_and_do_not_wait_for_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
):
    one_core(monkeypatch)
    async with EnvironmentHost({"a": spec()}, max_children=2) as host, AsyncExitStack() as stack:
        slow, *others = await opened(stack, host, 4)
        for seed, session in enumerate([slow, *others]):
            await session.reset(seed)
        before = set(await pids_of(others))
        sleeping = asyncio.create_task(slow.step("sleep 3"))
        await asyncio.sleep(0)
        after = await asyncio.gather(*(pids_of([session]) for session in others))
        assert not sleeping.done()
        assert not before & {pid for (pid,) in after}
        assert (await sleeping).observation.startswith("sleep 3")


async def test_what_is_not_replayable_waits_and_ends_with_its_child(monkeypatch: pytest.MonkeyPatch):
    one_core(monkeypatch)
    async with EnvironmentHost({"a": spec("Plain")}, max_children=2) as host, AsyncExitStack() as stack:
        slow, waiting, idle = await opened(stack, host, 3)
        for session in (slow, waiting, idle):
            await session.reset(0)
        sleeping = asyncio.create_task(slow.step("sleep 0.5"))
        await asyncio.sleep(0)
        assert (await waiting.step("go")).observation.startswith("go")
        assert sleeping.done()
        with pytest.raises(EnvironmentFault, match="died"):
            await slow.step("die")
        with pytest.raises(EnvironmentFault, match=r"died: .*exit status 7"):
            await idle.step("go")


async def test_one_that_says_something_else_when_it_is_rebuilt_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    one_core(monkeypatch)
    async with EnvironmentHost({"a": spec()}, max_children=2) as host, AsyncExitStack() as stack:
        bad, liar = await opened(stack, host, 2)
        await bad.reset(0)
        await liar.reset(1)
        await liar.step("say your process")
        with pytest.raises(EnvironmentFault, match="died"):
            await bad.step("die")
        with pytest.raises(EnvironmentFault, match=r"differs: .*its answer to action 1 .*replayable"):
            await liar.step("go")


async def test_a_reward_whose_hash_is_that_of_another_is_another_when_it_is_rebuilt(monkeypatch: pytest.MonkeyPatch):
    one_core(monkeypatch)
    assert hash(-1.0) == hash(-2.0)
    async with EnvironmentHost({"a": spec("Paying")}, max_children=2) as host, AsyncExitStack() as stack:
        bad, liar = await opened(stack, host, 2)
        await bad.reset(0)
        await liar.reset(1)
        assert (await liar.step("pay")).reward == -1.0
        monkeypatch.setenv("PAID", "-2.0")
        with pytest.raises(EnvironmentFault, match="died"):
            await bad.step("die")
        with pytest.raises(EnvironmentFault, match=r"differs: .*its answer to action 1"):
            await liar.step("pay")


async def test_calls_of_a_thread_safe_class_run_at_the_same_time_and_a_hung_one_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch,
):
    one_core(monkeypatch)
    async with EnvironmentHost({"a": spec("Meeting", step_timeout_s=1.0)}, max_children=3) as host:
        async with AsyncExitStack() as stack:
            sessions = await opened(stack, host, 8)
            first = await asyncio.gather(*(session.reset(0) for session in sessions))
            assert len({state.info["pid"] for state in first}) == 1
            met = await asyncio.gather(*(session.step("meet") for session in sessions))
            assert len(met) == 8
            with pytest.raises(EnvironmentFault, match="step_timeout"):
                await sessions[0].step("hang")
            assert len(set(await pids_of(sessions[1:]))) == 1
            async with host.open("a") as fresh:
                assert (await fresh.reset(0)).info["pid"] != first[0].info["pid"]
            child = psutil.Process(first[0].info["pid"])
        gone, _ = await asyncio.to_thread(psutil.wait_procs, [child], timeout=5)
        assert gone, "with its last sound session it is of no use"


@pytest.mark.parametrize(
    ("marks", "cause"),
    [(["1", "2"], ""), (["die 1", "die 2"], ""), (["1", "2", "3", "4", "5"], "unavailable")],
    ids=["unavailable", "died", "for ever"],
)
async def test_a_reset_is_tried_again_where_that_may_help(tmp_path: Path, marks: list[str], cause: str):
    for name in marks:
        (tmp_path / "marks").mkdir(exist_ok=True)
        (tmp_path / "marks" / name).touch()
    marked = spec(marks=str(tmp_path / "marks"))
    async with EnvironmentHost({"a": marked}, max_children=4) as host, host.open("a") as session:
        if not cause:
            assert (await session.reset(4)).observation.startswith("seed 4")
            return
        with pytest.raises(EnvironmentFault, match=r"SandboxError: no room.*after 5 tries") as caught:
            await session.reset(4)
        assert caught.value.cause == cause


async def test_sessions_beyond_the_seats_wait_and_all_get_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_process, "INSTANCES_PER_CHILD", 3)
    async with EnvironmentHost({"a": spec(), "b": spec("Plain")}, max_children=2) as host:

        async def play(task: str, seed: int) -> str:
            async with host.open(task) as session:
                await session.reset(seed)
                assert len(psutil.Process().children()) <= 3
                return (await session.step("go")).observation

        said = await asyncio.gather(*(play("ab"[seed % 2], seed) for seed in range(40)))
    assert len(said) == 40
    assert not [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


async def test_the_row_of_the_seed_is_the_task_of_the_episode_also_when_it_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one_core(monkeypatch)
    (tmp_path / "rows.jsonl").write_text('{"row": 0}\n\n{"row": 1}\n{"row": 2}\n')
    entry_point = "shared_lake:Draws"
    dataset = tmp_path / "rows.jsonl"
    one = EnvironmentSpec(entry_point=entry_point, dataset=dataset, reset_timeout_s=30.0, step_timeout_s=10.0)
    async with EnvironmentHost({"a": one}, max_children=1) as host, host.open("a") as session:
        assert [(await session.reset(seed)).info["task"] for seed in (0, 2, 4)] == [{"row": 0}, {"row": 2}, {"row": 1}]


async def test_a_data_set_with_a_wrong_line_is_found_before_a_run(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"row": 0}\n[]\n')
    wrong = EnvironmentSpec(
        entry_point="shared_lake:Draws", dataset=tmp_path / "rows.jsonl", reset_timeout_s=30.0, step_timeout_s=10.0
    )
    with pytest.raises(ConfigError, match=r"rows.jsonl:2: expected a JSON object"):
        await try_environment(wrong)
