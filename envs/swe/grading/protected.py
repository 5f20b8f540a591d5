"""Files that decide how tests run: a patch may not bring its own.

A patch that may write ``conftest.py`` makes every test pass. So what steers the test run is taken out of a patch before
it is applied, unless the task's own gold patch changes that very file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rollart_hpc.envs.swe.grading.protected_names import PROTECTED
from rollart_hpc.envs.swe.instance import Instance
from rollart_hpc.envs.swe.patch import FilePatch, MalformedPatchError, parse_patch

_PROTECTED = re.compile(PROTECTED)
_RUNNER_MODULES = {"pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli", "pygments"}
_SHADOWED = _RUNNER_MODULES | set(sys.stdlib_module_names)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedPatch:
    """What is left of a patch."""

    text: bytes
    paths: tuple[str, ...]
    """Files that it changes."""
    dropped: tuple[str, ...]
    """Files whose change was taken out."""


def admit(patch: bytes, instance: Instance) -> AdmittedPatch:
    """The patch without what steers the tests.

    Raises:
        MalformedPatchError: it is no patch in git's format.
        ValueError: one of the task's own patches is none.
    """
    tests = _paths_of_row(instance, "test_patch")
    above_tests = {"/".join(path.split("/")[:depth]) for path in tests for depth in range(1, path.count("/") + 1)}
    needed = _paths_of_row(instance, "patch")
    files = parse_patch(patch)
    dropped = _paths(
        file
        for file in files
        if any(
            path in tests | above_tests or (path not in needed and _steers(path, file.creates)) for path in file.paths
        )
    )
    kept = [file for file in files if dropped.isdisjoint(file.paths)]
    return AdmittedPatch(
        text=b"".join(file.text for file in kept),
        paths=tuple(sorted(_paths(kept))),
        dropped=tuple(sorted(dropped)),
    )


def _steers(path: str, creates: bool) -> bool:
    return bool(_PROTECTED.search(path)) or (creates and _shadows(path))


def _shadows(path: str) -> bool:
    """A new module at the top of the repository's import path that hides one of Python or of pytest."""
    first = path.removeprefix("src/").split("/")[0]
    return first.removesuffix(".py") in _SHADOWED and (first.endswith(".py") or "/" in path.removeprefix("src/"))


def _paths_of_row(instance: Instance, field: Literal["patch", "test_patch"]) -> set[str]:
    try:
        return _paths(parse_patch(getattr(instance, field).encode()))
    except MalformedPatchError as error:
        raise ValueError(f"task {instance.instance_id}: its {field} is not in git's format: {error}") from None


def _paths(files: Iterable[FilePatch]) -> set[str]:
    return {path for file in files for path in file.paths}
