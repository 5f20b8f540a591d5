"""Programs are scored by what they do."""

from typing import Any

import pytest

from rollart_hpc.envs.code import Code
from rollart_hpc.reward_functions import code_tests
from rollart_hpc.types import Episode, FinishReason, Score, Turn

SUMS = {"inputs": ["1 2\n", "-5 5\n"], "outputs": ["3\n", "0"]}
DOUBLE = ["assert double(2) == 4", "assert double(0) == 0\nassert double(-1) == -2"]


async def scored(program: str, tests: Any, *, before: str = "So:", after: str = "", **settings: Any) -> Score:
    action = f"{before}\n```python\n{program}\n```\n{after}" if program else "I do not know."
    turn = Turn(observation="?", action=action, reward=0.0, finish_reason=FinishReason.STOP)
    episode = Episode(
        task="code",
        seed=0,
        turns=[turn],
        final_observation="",
        terminated=True,
        truncated=False,
        info={"tests": tests},
    )
    return await code_tests.score(episode, **settings)


@pytest.mark.parametrize(
    ("program", "tests", "passed"),
    [
        ("a, b = map(int, input().split())\nprint(a + b)", SUMS, 1.0),
        ("print(sum(map(int, input().split())), '\\n')", [{"input": "1 2", "output": "3"}], 1.0),
        ("print(3)", SUMS, 0.5),
        ("print(3)\nraise SystemExit(1)", SUMS, 0.0),
        ("", SUMS, 0.0),
        ("import sys\nsys.stderr.write('x')\nprint('passed', 3)", SUMS, 0.0),
        ("import os\nos.system('rm -rf /program; mkdir /program/solution.py')\nprint(3)", SUMS, 0.5),
        ("def double(x):\n    return 2 * x", DOUBLE, 1.0),
        ("def double(x):\n    return x + 2", DOUBLE, 0.5),
        ("def double(x):\n    return 2 * x", "assert double(4) == 8", 1.0),
        ("def double(x:", DOUBLE, 0.0),
        ("import os\nos._exit(0)", DOUBLE, 0.0),
        ("import sys\nsys.exit(0)", DOUBLE, 0.0),
        ("import pytest\ndef double(x):\n    pytest.skip('')", DOUBLE, 0.0),
        ("import builtins\nbuiltins.exec = lambda *_: None\ndouble = int", DOUBLE, 0.0),
        ("import _pytest.python as p\np.Function.runtest = lambda self: None", DOUBLE, 0.0),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", DOUBLE, 0.0),
        ("import os\nprint(3)\nos.remove('/bin')", SUMS, 0.5),
        ("print('x' * 3_000_000)", [{"input": "", "output": "x" * 3_000_000}], 1.0),
        (
            "import pytest\n@pytest.fixture(autouse=True)\ndef empty(request):\n    request.node.obj = lambda: None",
            DOUBLE,
            0.0,
        ),
    ],
)
async def test_a_program_is_scored_by_what_it_does(program: str, tests: Any, passed: float) -> None:
    score = await scored(program, tests, partial=True)
    assert (score.reward, score.success, score.metrics["passed"]) == (passed, passed == 1, passed)
    assert score.metrics["answered"] == float(bool(program))


async def test_the_program_is_the_last_python_block() -> None:
    example = "Of the input\n```text\n1 2\n```\nit makes 3:"
    assert (await scored("print(sum(map(int, input().split())))", SUMS, before=example)).reward == 1.0
    assert (await scored("print(sum(map(int, input().split())))", SUMS, after="Output:\n```\n3\n```")).reward == 1.0


async def test_without_partial_all_tests_must_pass() -> None:
    assert (await scored("print(3)", SUMS)).reward == 0.0
    assert (await scored("print(sum(map(int, input().split())))", SUMS)).reward == 1.0


async def test_a_program_that_does_not_end_is_ended() -> None:
    assert (await scored("while True: pass", SUMS, timeout_s=1.0)).reward == 0.0
    only_the_first = "import time\ntime.sleep(30 * (input() == '1 2'))\nprint(0)"
    assert (await scored(only_the_first, SUMS, timeout_s=1.0, partial=True)).reward == 0.0


@pytest.mark.parametrize(
    "tests",
    [
        None,
        [],
        {},
        {"inputs": ["1"], "outputs": []},
        {"inputs": [], "outputs": []},
        {"inputs": "12", "outputs": "34"},
        {"inputs": [[1, 2]], "outputs": [3]},
        {"inputs": ["1"], "outputs": ["1"], "fn_name": "double"},
        [{"input": None, "output": "3"}],
        [1],
        7,
    ],
)
async def test_tests_of_another_form_are_refused(tests: Any) -> None:
    with pytest.raises(ValueError, match="expected inputs and outputs"):
        await scored("print(3)", tests)


@pytest.mark.parametrize(
    "tests",
    [
        "",
        "# nothing",
        ["assert double(2) == 4", " "],
        "from math import *\nassert double",
        "await double(2)",
        "assert (",
    ],
)
async def test_assertions_that_say_nothing_or_cannot_run_are_refused(tests: Any) -> None:
    with pytest.raises(ValueError, match="cannot be the body of a function"):
        await scored("def double(x):\n    return 2 * x", tests)


async def test_every_problem_that_ships_can_be_solved() -> None:
    solutions = [
        "print(sum(map(int, input().split())))",
        "print(*reversed(input().split()))",
        "input()\nbest = here = -10**9\nfor x in map(int, input().split()):\n"
        "    here = max(here, 0) + x\n    best = max(best, here)\nprint(best)",
        "s = input()\nfor _ in s:\n    for pair in ('()', '[]', '{}'):\n        s = s.replace(pair, '')\n"
        "print('NO' if s else 'YES')",
        "from itertools import groupby\ndef runs(text):\n    return [(c, len(list(g))) for c, g in groupby(text)]",
        "def roman(n):\n    out = ''\n    for v, s in zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),\n"
        "                    'M CM D CD C XC L XL X IX V IV I'.split()):\n        out += n // v * s\n        n %= v\n"
        "    return out",
        "def primes(n):\n    sieve = [True] * n\n    for i in range(2, n):\n        if sieve[i]:\n"
        "            sieve[i * i::i] = [False] * len(sieve[i * i::i])\n    return [i for i in range(2, n) if sieve[i]]",
        "import os\nlongest_common_prefix = os.path.commonprefix",
    ]
    environment = Code()
    problems = [environment.reset(seed=seed, task={}) for seed in range(len(solutions) + 1)]
    assert problems[0] == problems[-1]
    for (_, info), solution in zip(problems, solutions, strict=False):
        assert (await scored(solution, info["tests"])).success


def test_a_row_of_another_form_is_refused_and_any_answer_ends_the_episode() -> None:
    with pytest.raises(ValueError, match="expected the fields problem"):
        Code().reset(seed=0, task={"prompt": "x"})
    text, info = Code(instructions="Do: ").reset(seed=0, task={"problem": "x", "tests": ["assert f"]})
    assert (text, info) == ("Do: x", {"tests": ["assert f"]})
    assert Code().step("\ud800") == ("", 0.0, True, False, {})
