"""Grades a patch: takes out what steers the tests, applies the rest in a clean sandbox, runs the hidden tests there.

Invariants: what the policy did decides the verdict and never raises; what the infrastructure did raises and is never a
verdict. No sandbox is used for two tries. Nothing that the patch's code prints is taken for a result where pytest is
run directly; where a row brings a script of its own, its log is parsed as SWE-bench does.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace

from rollart_hpc.envs.swe.grading.log_parsers import END_MARKER, EXIT_CODE_MARKER, LOG_PARSERS, START_MARKER
from rollart_hpc.envs.swe.grading.protected import admit
from rollart_hpc.envs.swe.grading.pytest_run import GRADER, LOG_TAIL, run_pytest
from rollart_hpc.envs.swe.grading.verdict import Verdict, verdict_of, worst_statuses
from rollart_hpc.envs.swe.instance import Instance
from rollart_hpc.envs.swe.patch import MalformedPatchError
from rollart_hpc.envs.swe.work_tree import open_work_tree
from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox import Sandbox

_APPLY = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
_APPLY_TIMEOUT_S = 120.0
_MIN_OUTPUT_KB = 32 * 1024
"""A log that lost its middle would lose tests that passed."""


def evaluate(instance: Instance, patch: bytes, *, timeout_s: float) -> Verdict:
    """Grades a patch; blocks until it is done.

    Args:
        instance: the task.
        patch: in git's format, against the base commit.
        timeout_s: of the tests.

    Raises:
        SandboxError, ImageError: the sandbox failed.
        ValueError: the task itself is broken: its snapshot, or its test patch, which does not apply to its base.
    """
    try:
        admitted = admit(patch, instance)
    except MalformedPatchError as error:
        return Verdict(resolved=False, reason="malformed", log=str(error))
    if not admitted.text:
        return Verdict(resolved=False, reason="empty", dropped=admitted.dropped)
    for apply in _APPLY:
        with open_work_tree(instance, min_output_kb=_MIN_OUTPUT_KB) as sandbox:
            _apply_test_patch(instance, sandbox)
            sandbox.write_file(f"{GRADER}/model.patch", admitted.text)
            result = sandbox.run(f"{apply} {GRADER}/model.patch", timeout_s=_APPLY_TIMEOUT_S)
            if result.ending == "timeout":
                raise SandboxError(f"{instance.instance_id}: {apply} took over {_APPLY_TIMEOUT_S:g} s")
            if result.exit_code == 0:
                verdict = _grade(instance, admitted.paths, sandbox, timeout_s)
                return replace(verdict, dropped=admitted.dropped)
    return Verdict(resolved=False, reason="not_applied", dropped=admitted.dropped)


def evaluate_base(instance: Instance, *, timeout_s: float) -> Verdict:
    """Grades the base commit as it is: a sound task shows no FAIL_TO_PASS passing and all of PASS_TO_PASS.

    Raises:
        SandboxError, ImageError, ValueError: as `evaluate`.
    """
    with open_work_tree(instance, min_output_kb=_MIN_OUTPUT_KB) as sandbox:
        _apply_test_patch(instance, sandbox)
        return _grade(instance, (), sandbox, timeout_s)


def _apply_test_patch(instance: Instance, sandbox: Sandbox) -> None:
    """Where no script does; before the policy's patch, so that a failure is the task's own."""
    if instance.eval_script or not instance.test_patch:
        return
    sandbox.write_file(f"{GRADER}/test.patch", instance.test_patch.encode())
    result = sandbox.run(f"git apply {GRADER}/test.patch", timeout_s=_APPLY_TIMEOUT_S)
    if result.exit_code:
        raise ValueError(f"{instance.instance_id}: its test patch does not apply: {result.output[-1000:]}")


def _grade(instance: Instance, changed: tuple[str, ...], sandbox: Sandbox, timeout_s: float) -> Verdict:
    if instance.eval_script:
        return _grade_by_script(instance, sandbox, timeout_s)
    return _grade_by_pytest(instance, changed, sandbox, timeout_s)


def _grade_by_pytest(instance: Instance, changed: tuple[str, ...], sandbox: Sandbox, timeout_s: float) -> Verdict:
    run = run_pytest(
        sandbox,
        directory=instance.directory,
        files=instance.test_files,
        expected=[*instance.fail_to_pass, *instance.pass_to_pass],
        changed=changed,
        timeout_s=timeout_s,
        plugins=bool(instance.image),
    )
    if run.failure:
        return Verdict(resolved=False, reason=run.failure, log=run.log)
    return verdict_of(run.statuses, instance, log=run.log)


def _grade_by_script(instance: Instance, sandbox: Sandbox, timeout_s: float) -> Verdict:
    """Runs the row's script; its markers get a nonce, so that the patch's code cannot print them by heart."""
    nonce = secrets.token_hex(16)
    script = instance.eval_script
    for marker in (START_MARKER, END_MARKER, EXIT_CODE_MARKER):
        script = script.replace(marker, f"{marker} {nonce}")
    sandbox.write_file(f"{GRADER}/eval.sh", script.encode())
    result = sandbox.run(f"bash {GRADER}/eval.sh", timeout_s=timeout_s)
    log = result.output[-LOG_TAIL:]
    if result.ending != "exit":
        return Verdict(resolved=False, reason=result.ending, log=log)
    _, found_start, rest = result.output.partition(f"{START_MARKER} {nonce}")
    tests, found_end, after = rest.partition(f"{END_MARKER} {nonce}")
    if not (found_start and found_end):
        return Verdict(resolved=False, reason="not_finished", log=log)
    parse = LOG_PARSERS[instance.log_parser]
    # Standard error may come before what it follows; then the tests' lines are outside of the markers.
    statuses = worst_statuses(parse(tests)) or worst_statuses(parse(result.output))
    if _exit_code(after, nonce) and statuses and not {"FAILED", "ERROR"} & set(statuses.values()):
        return Verdict(resolved=False, reason="tampered", log=log)
    return verdict_of(statuses, instance, log=log)


def _exit_code(text: str, nonce: str) -> int:
    """That of the test command, where the script prints it; else 0."""
    told = re.search(rf"{re.escape(EXIT_CODE_MARKER)} {nonce}: *(-?\d+)", text)
    return int(told[1]) if told else 0
