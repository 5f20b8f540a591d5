"""Makes rows and snapshots of tasks that are written as TOML: ``python -m rollart_hpc.envs.swe.pack DIRECTORY``.

A task is one TOML file: the fields of its row that people write, and three tables of files by their paths: ``files`` of
the base commit, ``solution`` as the gold patch leaves them, ``tests`` as the test patch leaves them. Written beside
them: ``tasks.jsonl`` and a tar for each. The same files give the same bytes, on every machine that has git.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollart_hpc.envs.swe.instance import TINY, Instance
from rollart_hpc.envs.swe.work_tree import COMMIT, COMMITTER

_DIFF = ("git", "diff", "--cached", "--binary", "--full-index", "--no-renames")


def main(directory: Path) -> int:
    """Packs every task of a directory into it; 2 where there is none, or one of them is no task."""
    rows: list[str] = []
    sources = sorted(directory.glob("*.toml"))
    if not sources:
        sys.stderr.write(f"{directory} holds no *.toml; expected a directory of tasks, written as in {TINY}\n")
        return 2
    for source in sources:
        try:
            row, snapshot = pack(tomllib.loads(source.read_text(encoding="utf-8")), source.with_suffix(".tar").name)
            Instance.from_row(row, snapshots=directory)
        except ValueError as error:
            sys.stderr.write(f"{source}: {error}\n")
            return 2
        source.with_suffix(".tar").write_bytes(snapshot)
        rows.append(json.dumps(row) + "\n")
    (directory / "tasks.jsonl").write_text("".join(rows), encoding="utf-8")
    return 0


def pack(task: Mapping[str, Any], snapshot_name: str) -> tuple[dict[str, Any], bytes]:
    """The row and the snapshot of one task.

    Raises:
        ValueError: it lacks a table of files.
    """
    if missing := [table for table in ("files", "solution", "tests") if not isinstance(task.get(table), Mapping)]:
        raise ValueError(f"the task has no tables {missing}; expected files, solution and tests, of texts by path")
    files, solution, tests = task["files"], task["solution"], task["tests"]
    snapshot = _tar(files)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        _write(tree, files)
        base = _git(tree, "bash", "-c", COMMIT).split()[-1]
        patch = _changes(tree, solution)
        test_patch = _changes(tree, tests)
    row = {key: value for key, value in task.items() if key not in {"files", "solution", "tests"}}
    return row | {
        "base_commit": base,
        "patch": patch,
        "test_patch": test_patch,
        "snapshot": {"path": snapshot_name, "sha256": hashlib.sha256(snapshot).hexdigest(), "dest": "/testbed"},
    }, snapshot


def _tar(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _changes(tree: Path, files: Mapping[str, str]) -> str:
    """The patch from the base commit to these files; the tree is then as it was."""
    _write(tree, files)
    _git(tree, "git", "add", "-A")
    patch = _git(tree, *_DIFF)
    _git(tree, "git", "reset", "-q", "--hard")
    return patch


def _write(tree: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(0o644)


def _git(tree: Path, *command: str) -> str:
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"} | COMMITTER
    return subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE).stdout.decode()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else TINY))
