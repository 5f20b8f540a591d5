"""Reward of a program: the share of its tests that it passes, or all or nothing; run in a sandbox.

Tests, from a field of the episode's info, are one of:

- cases of input and output: ``{"inputs": [...], "outputs": [...]}`` or ``[{"input": ..., "output": ...}, ...]``. The
  program reads standard input and writes standard output. What is expected of it never enters the sandbox.
- assertions: a text, or a list of texts, of Python code that uses the program's names. They run by pytest, in the same
  process as the program: what is said of hidden tests in envs/swe/README.md holds for them.
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from rollart_hpc.config.node import NodeSettings, SandboxSection
from rollart_hpc.envs.code.blocks import last_block
from rollart_hpc.envs.swe.grading.pytest_run import run_pytest
from rollart_hpc.sandbox import open_sandbox
from rollart_hpc.types import Episode, Score

_LANGUAGES = ("python", "python3", "py")
_DIRECTORY = "/program"
_TESTS = "test_solution.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tests:
    cases: tuple[tuple[str, str], ...] = ()
    """Input and expected output."""
    assertions: tuple[str, ...] = ()


async def score(
    episode: Episode,
    *,
    tests_field: str = "tests",
    timeout_s: float = 10.0,
    partial: bool = False,
    max_concurrent: int = 4,
) -> Score:
    """1 where the program in the last block of the last answer passes all tests, else 0.

    Args:
        episode: its info holds the tests.
        tests_field: the field of info that does.
        timeout_s: of each case, or of all assertions together. The deadline of the whole call is the run's
            ``rollout.reward_timeout_s``.
        partial: the reward is the share of tests that pass, instead; cases after one that took too long do not.
        max_concurrent: programs tested at once in this process.

    Raises:
        ValueError: there are no tests, or they have another form.
        SandboxError: the infrastructure failed.
    """
    tests = _tests(episode.info.get(tests_field), tests_field)
    block = last_block(episode.turns[-1].action, _LANGUAGES) if episode.turns else None
    if block is None:
        return Score(reward=0.0, metrics={"answered": 0.0, "passed": 0.0})
    program = block.encode(errors="replace")
    passed = await asyncio.get_running_loop().run_in_executor(
        _sandboxes(max_concurrent), lambda: _passed_share(program, tests, timeout_s, to_the_end=partial)
    )
    return Score(
        reward=passed if partial else float(passed == 1),
        success=passed == 1,
        metrics={"answered": 1.0, "passed": passed},
    )


def _tests(value: object, field: str) -> _Tests:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return _Tests(assertions=(value,))
    pairs: list[tuple[object, object]] = []
    if isinstance(value, Mapping) and {"inputs", "outputs"} <= set(value) and not value.get("fn_name"):
        inputs, outputs = value["inputs"], value["outputs"]
        if isinstance(inputs, list | tuple) and isinstance(outputs, list | tuple) and len(inputs) == len(outputs):
            pairs = list(zip(inputs, outputs, strict=True))
    elif isinstance(value, list | tuple) and value:
        if all(isinstance(test, str) for test in value):
            return _Tests(assertions=tuple(value))
        if all(isinstance(test, Mapping) and {"input", "output"} <= set(test) for test in value):
            pairs = [(test["input"], test["output"]) for test in value]
    if pairs and all(isinstance(text, str | int | float) for pair in pairs for text in pair):
        return _Tests(cases=tuple((str(given), str(expected)) for given, expected in pairs))
    raise ValueError(
        f"info[{field!r}] is {value!r:.100}; expected inputs and outputs, equally many texts, or a list of input and "
        "output, or assertions as a text or a list of texts; calls of a function (fn_name) are written as assertions"
    )


def _passed_share(program: bytes, tests: _Tests, timeout_s: float, *, to_the_end: bool) -> float:
    assertions = _functions(tests.assertions)
    with open_sandbox(root=None, directory=_DIRECTORY, settings=_settings(tests)) as sandbox:
        sandbox.write_file(f"{_DIRECTORY}/solution.py", program)
        if tests.assertions:
            functions = [f"test_{number}" for number in range(len(tests.assertions))]
            # In the module that pytest reads there is no name of the program: fixtures and marks of its own do nothing.
            sandbox.write_file(f"{_DIRECTORY}/assertions.py", assertions.encode())
            sandbox.write_file(f"{_DIRECTORY}/{_TESTS}", f"from assertions import {', '.join(functions)}\n".encode())
            names = [f"{_TESTS}::{function}" for function in functions]
            run = run_pytest(
                sandbox,
                directory=_DIRECTORY,
                files=[_TESTS],
                expected=names,
                changed=["solution.py"],
                timeout_s=timeout_s,
            )
            return sum(run.statuses.get(name) == "PASSED" for name in names) / len(names)
        passed = 0
        for given, expected in tests.cases:
            command = f'exec "$(command -v python || command -v python3)" -I -B {_DIRECTORY}/solution.py 2>/dev/null'
            result = sandbox.run(command, timeout_s=timeout_s, stdin=given.encode())
            ended_well = result.ending == "exit" and result.exit_code == 0
            if ended_well and _lines(result.output) == _lines(expected):
                passed += 1
            elif not to_the_end or result.ending == "timeout":
                # Each of many could take its time: then the call passes its own deadline, which is no reward of 0.
                break
        return passed / len(tests.cases)


def _settings(tests: _Tests) -> SandboxSection:
    """Those of the run, with room for the longest expected output in what is kept of a command's."""
    settings = NodeSettings.current().sandbox
    longest_kb = max((len(expected.encode(errors="replace")) >> 10 for _, expected in tests.cases), default=0)
    return settings.model_copy(update={"max_output_kb": max(settings.max_output_kb, 2 * longest_kb)})


def _functions(assertions: Sequence[str]) -> str:
    """Each text as a function. They are written out: one that runs a text could be made to run another one."""
    functions: list[ast.stmt] = []
    for number, assertion in enumerate(assertions):
        try:
            function = ast.parse(f"def test_{number}(): pass").body[0]
            assert isinstance(function, ast.FunctionDef)
            function.body = ast.parse(assertion).body
            if not function.body:
                raise ValueError("it asserts nothing")
            compile(ast.Module(body=[function], type_ignores=[]), "assertion", "exec")
        except (SyntaxError, ValueError) as error:
            text = f"assertion {number} cannot be the body of a function: {error}: {assertion[:200]!r}"
            raise ValueError(text) from error
        functions.append(function)
    return "from solution import *\n\n" + ast.unparse(ast.Module(body=functions, type_ignores=[])) + "\n"


def _lines(output: str) -> list[str]:
    """Blanks at the ends of lines and lines at the end do not count."""
    return [line.rstrip() for line in output.rstrip().split("\n")]


@lru_cache
def _sandboxes(max_concurrent: int) -> ThreadPoolExecutor:
    """The threads of all calls of this process that give the same bound."""
    return ThreadPoolExecutor(max_concurrent, thread_name_prefix="code_tests")
