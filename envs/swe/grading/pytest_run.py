"""Runs pytest in a sandbox by `pytest_runner`, whose report the code under test cannot print."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from rollart_hpc.envs.swe.grading.protected_names import WATCHED
from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox import CommandResult, Sandbox

GRADER = "/tmp/rollart-grading"
"""Directory in the sandbox for what grading needs."""
LOG_TAIL = 6000
_NO_PYTHON = "there is no python in the sandbox; install it in the image"
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestRun:
    """What a run showed."""

    failure: str = ""
    """Why its results are not to be believed: ``not_finished``, ``tampered``, or how the sandbox ended it; empty where
    they are."""
    statuses: dict[str, str] = field(default_factory=dict[str, str])
    log: str = ""
    """The end of what was printed, for people; it may hold anything."""


def run_pytest(
    sandbox: Sandbox,
    *,
    directory: str,
    files: Sequence[str],
    expected: Sequence[str],
    changed: Sequence[str],
    timeout_s: float,
    plugins: bool = False,
) -> PytestRun:
    """Runs test files.

    Args:
        sandbox: holds them, and pytest.
        directory: root of the tests, first in the import path.
        files: to run, relative to it.
        expected: tests whose status is wanted.
        changed: files that are under suspicion, relative to the directory: a skip that is raised in them is a failure.
        timeout_s: of the whole run.
        plugins: what is installed beside pytest takes part: for images, which have what their tests need. Of the host
            nothing does; loading all of its plugins takes longer than small tests.

    Raises:
        SandboxError: the sandbox is lost, or has no Python or no pytest.
    """
    nonce = secrets.token_hex(16)
    runner = resources.files("rollart_hpc.envs.swe.grading").joinpath("pytest_runner.py").read_bytes()
    sandbox.write_file(f"{GRADER}/run.py", runner)
    specification = {
        "directory": directory,
        "files": list(files),
        "expected": list(expected),
        "changed": [f"{directory}/{path}" for path in changed],
        "watched": WATCHED,
    }
    data = json.dumps(specification).encode()
    result = sandbox.run(
        # The runner replaces the shell: no process is left whose descriptors lead to the report.
        f'python="$(command -v python || command -v python3)" || {{ echo "{_NO_PYTHON}"; exit {_NOT_FOUND}; }}\n'
        f'exec "$python" -I -B {GRADER}/run.py',
        timeout_s=timeout_s,
        environment={} if plugins else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=struct.pack(">I", len(data)) + data + nonce.encode(),
    )
    if result.ending != "exit":
        return PytestRun(failure=result.ending, log=result.output[-LOG_TAIL:])
    report = _report(result, nonce)
    if result.exit_code == _NOT_FOUND and result.output.strip() == _NO_PYTHON:
        raise SandboxError(_NO_PYTHON)
    if report is None:
        return PytestRun(failure="not_finished", log=result.output[-LOG_TAIL:])
    if "no_pytest" in report:
        raise SandboxError(f"there is no pytest in the sandbox: {report['no_pytest']}; install it in the image")
    if not report["finished"]:
        return PytestRun(failure="not_finished", log=report["log"])
    if report["tampered"]:
        return PytestRun(failure="tampered", log=f"{report['tampered']}\n{report['log']}")
    return PytestRun(statuses=report["statuses"], log=report["log"])


def _report(result: CommandResult, nonce: str) -> dict[str, Any] | None:
    """The one line of the output that begins with the nonce; None without it, when the reporter was killed."""
    lines = [line for line in result.output.split("\n") if line.startswith(nonce)]
    return json.loads(lines[0].removeprefix(nonce)) if len(lines) == 1 and result.exit_code == 0 else None
