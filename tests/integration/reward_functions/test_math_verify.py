"""The verifier's processes are real: forks of a template that has math-verify imported."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rollart_hpc.reward_functions import math_verify
from rollart_hpc.reward_functions.math_verify import score
from rollart_hpc.types import Episode, FinishReason, Turn
from tests.live_processes import live_children

# One event loop, hence one template, for the whole file.
pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = Path(math_verify.__file__)
SOURCE = FILE.read_text()
ROOT = FILE.resolve().parents[1]
ENDLESS_POWER = "\\boxed{9^{9^{9^9}}}"
REGEX_BOMB = "$" + "1," * 9_000 + "$"
DEEP = "\\boxed{" + "(" * 2_000 + ")" * 2_000 + "}"


def episode(text: str, answer: Any) -> Episode:
    turn = Turn(observation="?", action=text, reward=0.0, finish_reason=FinishReason.STOP)
    return Episode(
        task="t", seed=0, turns=[turn], final_observation="", terminated=True, truncated=False, info={"answer": answer}
    )


def templates() -> list[psutil.Process]:
    return [child for child in live_children() if str(FILE) in " ".join(child.cmdline())]


def first_forks(template: psutil.Process) -> list[psutil.Process]:
    while not (forks := template.children()):
        time.sleep(0.01)
    return forks


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("so \\boxed{2(x+1)}", "2x+2", 1.0),
        ("\\boxed{\\frac{1}{2}}", 0.5, 1.0),
        ("\\boxed{0.5}", "\\frac12", 1.0),
        ("\\boxed{0.00005}", 0.00005, 1.0),
        ("\\boxed{e-7}", 1e-7, 0.0),
        ("\\boxed{10^{22}}", 1e22, 1.0),
        ("\\boxed{1} no, \\boxed{\\{3,1\\}}", "\\{1,3\\}", 1.0),
        ("\\boxed{4}", ["3", "4"], 1.0),
        ("\\boxed{3}", "4", 0.0),
        ("\\boxed{3,4,5}", "4", 0.0),
        ("\\boxed{3 or 4}", "4", 0.0),
        ("\\boxed{}}{\ud800", "4", 0.0),
        ("4", "4", 0.0),
        ("\\boxed{\ud800}", "4", 0.0),
    ],
)
async def test_an_answer_is_right_if_it_is_equal_in_algebra(text: str, answer: Any, reward: float) -> None:
    got = await score(episode(text, answer))
    assert (got.reward, got.success) == (reward, reward == 1.0)


async def test_without_the_box_whatever_the_text_says_counts() -> None:
    assert (await score(episode("The answer is $x^2$.", "x*x"), boxed=False)).reward == 1.0
    assert (await score(episode("no idea", "4"), unanswered=-1.0)).reward == -1.0


@pytest.mark.parametrize("answer", ["", "\\boxed{}", "9^{9^{9^9}}", None, [], True, {"x": 1}])
async def test_a_right_answer_that_cannot_be_read_is_a_fault(answer: Any) -> None:
    with pytest.raises(ValueError, match="answer"):
        await score(episode("\\boxed{4}", answer), cpu_limit_s=1)
    with pytest.raises(KeyError, match="name the field"):
        await score(episode("\\boxed{4}", answer), field="gold")


async def test_texts_that_burn_are_wrong_and_no_other_waits_for_them() -> None:
    await score(episode("\\boxed{1}", "1"))
    texts = [ENDLESS_POWER, DEEP, REGEX_BOMB, *[ENDLESS_POWER] * (len(os.sched_getaffinity(0)) - 1)]
    async with asyncio.TaskGroup() as tasks:
        burning = [tasks.create_task(score(episode(text, "7"), boxed=False, cpu_limit_s=1)) for text in texts]
        await asyncio.sleep(0.05)
        good = [await score(episode("\\boxed{14/2}", "7")) for _ in range(30)]
        # More of them burn than there are processors: had one of the others waited for its turn, fewer would.
        num_burning = sum(not task.done() for task in burning)
    assert [got.reward for got in good] == [1.0] * 30
    assert num_burning >= len(os.sched_getaffinity(0))
    burnt = [task.result() for task in burning]
    assert {got.reward for got in burnt} == {0.0}
    # The bomb is read up to its length limit, which takes about as long as the time that it has.
    endless = [got for text, got in zip(texts, burnt, strict=True) if text != REGEX_BOMB]
    assert {got.metrics["unverifiable"] for got in endless} == {1.0}


async def test_a_call_that_is_left_ends_its_process() -> None:
    await score(episode("\\boxed{1}", "1"))
    (template,) = templates()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await score(episode(ENDLESS_POWER, "7"))
    # The next verdict comes from a template that has read the order to kill before it.
    assert (await score(episode("\\boxed{7}", "7"))).reward == 1.0
    psutil.wait_procs(template.children(), timeout=1)
    assert not [child for child in template.children() if child.status() != psutil.STATUS_ZOMBIE]


async def test_a_killed_template_is_a_fault_of_its_calls_and_is_replaced() -> None:
    await score(episode("\\boxed{1}", "1"))
    (template,) = templates()
    burning = asyncio.create_task(score(episode(ENDLESS_POWER, "7")))
    forks = await asyncio.to_thread(first_forks, template)
    os.kill(template.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="ended"):
        await burning
    assert not psutil.wait_procs(forks, timeout=5)[1]
    assert (await score(episode("\\boxed{7}", "7"))).reward == 1.0


async def test_the_file_works_alone_under_its_own_name_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "math_verify.py").write_text(SOURCE)
    (tmp_path / "caller.py").write_text(
        "import asyncio, sys\n"
        "from math_verify import score, _templates\n"
        "from rollart_hpc.types import Episode, Turn, FinishReason\n"
        "def episode(text):\n"
        "    turn = Turn(observation='', action=text, reward=0.0, finish_reason=FinishReason.STOP)\n"
        "    return Episode(task='t', seed=0, turns=[turn], final_observation='', terminated=True, truncated=False,\n"
        "                   info={'answer': '7'})\n"
        "async def main():\n"
        "    print((await score(episode(r'\\boxed{14/2}'))).reward, flush=True)\n"
        "    burning = asyncio.create_task(score(episode(r'\\boxed{9^{9^{9^9}}}')))\n"
        "    await asyncio.sleep(0.1)\n"
        "    await score(episode(r'\\boxed{7}'))\n"
        "    print(next(iter(_templates.values()))._process.pid, flush=True)\n"
        "    await burning\n"
        "asyncio.run(main())\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    caller = await asyncio.create_subprocess_exec(
        sys.executable, str(tmp_path / "caller.py"), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert caller.stdout is not None
    assert await caller.stdout.readline() == b"1.0\n"
    template = psutil.Process(int(await caller.stdout.readline()))
    forks = template.children()
    assert forks
    caller.kill()
    await caller.wait()
    assert not psutil.wait_procs([template, *forks], timeout=5)[1]
