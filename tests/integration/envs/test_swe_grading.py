"""Gold patches solve their tasks, nothing else does."""

from dataclasses import replace

import pytest

from rollart_hpc.envs.swe.grading.evaluate import evaluate
from rollart_hpc.envs.swe.grading.pytest_run import run_pytest
from rollart_hpc.envs.swe.grading.verdict import Verdict
from rollart_hpc.envs.swe.instance import Instance, tiny_rows
from rollart_hpc.errors import SandboxError
from rollart_hpc.sandbox import open_sandbox
from tests.integration.envs.repairs import patch_of, solution, tiny, with_script
from tests.integration.envs.swe_hacks import BROKEN, CORE, HACKS, LOG_HACKS


def grade(files: dict[str, str], *, timeout_s: float = 20.0) -> Verdict:
    """The verdict on these files in the task slug."""
    patch = patch_of("slug", files).encode()
    return evaluate(Instance.from_row(tiny("slug")), patch, timeout_s=timeout_s)


@pytest.mark.parametrize("name", [row["repo"].removeprefix("tiny/") for row in tiny_rows()])
def test_a_gold_patch_solves_its_task(name: str) -> None:
    instance = Instance.from_row(tiny(name))
    verdict = evaluate(instance, instance.patch.encode(), timeout_s=20)
    assert (verdict.resolved, verdict.reason, verdict.dropped) == (True, "resolved", ()), verdict.log


def test_an_empty_patch_solves_nothing_and_a_wrong_one_tells_how_far_it_got() -> None:
    assert evaluate(Instance.from_row(tiny("slug")), b"", timeout_s=20).reason == "empty"
    verdict = grade({CORE: BROKEN.replace('[^a-z0-9]"', '[^a-z0-9]+"')})
    assert (verdict.reason, verdict.fail_to_pass, verdict.pass_to_pass) == ("tests_failed", 0.5, 1.0)


def test_a_broken_patch_is_the_policys_doing() -> None:
    instance = Instance.from_row(tiny("slug"))
    assert evaluate(instance, b"this is no patch", timeout_s=20).reason == "malformed"
    other = patch_of("spans", solution("spans")).encode()
    assert evaluate(instance, other, timeout_s=20).reason == "not_applied"


def test_a_patch_that_fits_with_an_offset_is_applied() -> None:
    patch = patch_of("slug", solution("slug")).replace('"""Slugs: text that fits into a URL."""', '"""Slugs."""')
    assert evaluate(Instance.from_row(tiny("slug")), patch.encode(), timeout_s=20).reason == "resolved"


@pytest.mark.parametrize("hack", HACKS)
def test_a_hack_solves_nothing(hack: str) -> None:
    verdict = grade(HACKS[hack].files)
    assert (verdict.resolved, verdict.reason) == (False, HACKS[hack].reason), verdict.log


def test_code_that_does_not_end_is_ended() -> None:
    verdict = grade({CORE: "while True:\n    pass\n"}, timeout_s=2.0)
    assert (verdict.resolved, verdict.reason) == (False, "timeout")


def test_what_prints_much_and_starts_daemons_is_still_judged_by_its_tests() -> None:
    noise = "import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint('PASSED x\\n' * 300_000)\n"
    assert grade({CORE: noise + solution("slug")[CORE]}).reason == "resolved"


def test_a_broken_task_is_no_verdict() -> None:
    instance = Instance.from_row(tiny("slug"))
    gold = instance.patch.encode()
    broken_tests = replace(instance, test_patch=instance.test_patch.replace("assert slugify(", "assert slug("))
    with pytest.raises(ValueError, match="test patch does not apply"):
        evaluate(broken_tests, gold, timeout_s=20)
    with pytest.raises(ValueError, match="the row says"):
        evaluate(replace(instance, base_commit="0" * 40), gold, timeout_s=20)


def test_a_sandbox_without_python_is_no_verdict() -> None:
    with open_sandbox(environment={"PATH": "/only"}) as sandbox, pytest.raises(SandboxError, match="no python"):
        sandbox.run("mkdir /only; ln -s /usr/bin/sh /only", timeout_s=20, environment={"PATH": "/usr/bin"})
        run_pytest(sandbox, directory="/", files=[], expected=[], changed=[], timeout_s=20)


def test_a_row_with_a_script_is_graded_by_its_log() -> None:
    instance = Instance.from_row(with_script(tiny("spans")))
    noisy = instance.eval_script.replace("PYTEST_DISABLE", "seq 300000; PYTEST_DISABLE").replace(
        "=$?", "=$?; seq 300000"
    )
    verdict = evaluate(replace(instance, eval_script=noisy), instance.patch.encode(), timeout_s=20)
    assert (verdict.resolved, verdict.reason) == (True, "resolved"), verdict.log
    wrong = patch_of("spans", {"src/spans/merging.py": "def merge(spans):\n    return sorted(spans)\n"})
    assert evaluate(instance, wrong.encode(), timeout_s=20).reason == "tests_failed"


@pytest.mark.parametrize("hack", LOG_HACKS)
def test_hacks_of_the_log_solve_nothing(hack: str) -> None:
    instance = Instance.from_row(with_script(tiny("slug")))
    verdict = evaluate(instance, patch_of("slug", LOG_HACKS[hack].files).encode(), timeout_s=20)
    assert (verdict.resolved, verdict.reason) == (False, LOG_HACKS[hack].reason), verdict.log
