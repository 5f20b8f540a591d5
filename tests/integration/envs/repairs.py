"""Patches for the tests of envs/swe: of files that are written into the base of a tiny task."""

import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from rollart_hpc.envs.swe.instance import Instance, tiny_rows

SCRIPT = """#!/bin/bash
set -uxo pipefail
cd /testbed
git apply -v - <<'EOF_TEST_PATCH'
{test_patch}EOF_TEST_PATCH
: '>>>>> Start Test Output'
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python -B -m pytest -p no:cacheprovider -rA {files}
code=$?
: '>>>>> End Test Output'
echo ">>>>> Test Exit Code: $code"
"""


@lru_cache
def tiny(name: str) -> dict[str, Any]:
    """The row of a tiny task."""
    return next(row for row in tiny_rows() if row["repo"] == f"tiny/{name}")


def solution(name: str) -> dict[str, str]:
    """The files that the gold patch changes, as it leaves them."""
    import tomllib

    from rollart_hpc.envs.swe.instance import TINY

    return tomllib.loads((TINY / f"{name}.toml").read_text())["solution"]


def patch_of(name: str, files: Mapping[str, str]) -> str:
    """The patch that gives a tiny task's base these files."""
    snapshot = Instance.from_row(tiny(name)).snapshot
    assert snapshot
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=BytesIO(snapshot.read())) as tar:
        tar.extractall(scratch, filter="data")
        git(scratch, "init", "-q")
        git(scratch, "add", "-A", "-f")
        for path, text in files.items():
            file = Path(scratch, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        git(scratch, "add", "-A", "-f", "--intent-to-add")
        return git(scratch, "diff", "--no-renames", "--binary")


def with_script(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as SWE-bench has its own: graded by a script and its log."""
    files = " ".join(Instance.from_row(row).test_files)
    script = SCRIPT.format(test_patch=row["test_patch"], files=files)
    return dict(row) | {"eval_script": script, "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail"}


def git(directory: str | Path, *arguments: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, cwd=directory, env=environment, check=True, stdout=subprocess.PIPE).stdout.decode()
