"""One task: a row of SWE-bench's format, checked.

A row has SWE-bench's fields; ``FAIL_TO_PASS`` and ``PASS_TO_PASS`` are lists or JSON text of lists. What says where the
repository is: ``image``, a container image that holds it in ``/testbed``, or ``snapshot``, a tar of its files. Without
either the image is the one that SWE-bench publishes for the instance. What says how it is graded: ``eval_script`` and
``log_parser``, as in rows of SWE-bench 5; without a script pytest runs the files that the tests are in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollart_hpc.envs.swe.grading.log_parsers import END_MARKER, LOG_PARSERS, START_MARKER

TINY = Path(__file__).parent / "tiny"
_TEXTS = ("instance_id", "problem_statement", "patch", "test_patch")
_OPTIONAL_TEXTS = ("base_commit", "image", "eval_script", "log_parser")
_NEEDED = (*_TEXTS, "FAIL_TO_PASS", "PASS_TO_PASS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A tar with the files of the base commit, without history."""

    path: Path
    sha256: str
    """Of the tar, hexadecimal."""
    destination: str

    def read(self) -> bytes:
        """The tar.

        Raises:
            ValueError: there is no such file, or it differs from its digest.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            text = f"there is no snapshot {self.path}; say by `snapshots` what the rows' paths are relative to"
            raise ValueError(text) from None
        if (got := hashlib.sha256(data).hexdigest()) != self.sha256:
            raise ValueError(f"snapshot {self.path} has sha256 {got}; the row says {self.sha256}: pack it again")
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A checked row."""

    instance_id: str
    problem_statement: str
    base_commit: str
    patch: str
    """The gold patch: never shown to the policy; it says which files the task may need to change."""
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    image: str
    """Empty where a snapshot runs on the host's own Python."""
    snapshot: Snapshot | None
    eval_script: str
    log_parser: str

    @property
    def directory(self) -> str:
        """Where the repository is in the sandbox."""
        return self.snapshot.destination if self.snapshot else "/testbed"

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files of all tests that count, in their first order."""
        return tuple(dict.fromkeys(case.split("::")[0] for case in (*self.fail_to_pass, *self.pass_to_pass)))

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, snapshots: Path = TINY) -> Instance:
        """Checks a row.

        Args:
            row: the fields; those of SWE-bench that have no part in playing or grading are ignored.
            snapshots: what relative paths of snapshots are relative to.

        Raises:
            ValueError: fields are missing or wrong; says which and what is expected.
        """
        name = row.get("instance_id", "of no instance_id")
        if missing := [field for field in _NEEDED if field not in row]:
            raise ValueError(f"task {name} lacks {missing}; a row of SWE-bench has {list(_NEEDED)}")
        wrong = [field for field in _TEXTS if not isinstance(row[field], str)]
        if wrong := [*wrong, *(field for field in _OPTIONAL_TEXTS if not isinstance(row.get(field) or "", str))]:
            raise ValueError(f"task {name}: {wrong} are no texts")
        snapshot = _snapshot(row["snapshot"], snapshots, name) if row.get("snapshot") else None
        instance = cls(
            instance_id=row["instance_id"],
            problem_statement=row["problem_statement"],
            base_commit=row.get("base_commit") or "",
            patch=row["patch"],
            test_patch=row["test_patch"],
            fail_to_pass=_cases(row, "FAIL_TO_PASS"),
            pass_to_pass=_cases(row, "PASS_TO_PASS"),
            image=row.get("image") or ("" if snapshot else published_image(row["instance_id"])),
            snapshot=snapshot,
            eval_script=row.get("eval_script") or "",
            log_parser=row.get("log_parser") or "",
        )
        instance._check_grading(row.get("eval_type") or "pass_and_fail")
        return instance

    def _check_grading(self, eval_type: str) -> None:
        if not self.fail_to_pass:
            raise ValueError(f"task {self.instance_id} has no FAIL_TO_PASS, so that nothing shows whether it is solved")
        if eval_type != "pass_and_fail":
            raise ValueError(f"task {self.instance_id}: eval_type is {eval_type!r}; 'pass_and_fail' is what is graded")
        if not self.eval_script:
            return
        if self.log_parser not in LOG_PARSERS:
            raise ValueError(
                f"task {self.instance_id}: log_parser is {self.log_parser!r}; expected one of {sorted(LOG_PARSERS)}"
            )
        for marker in (START_MARKER, END_MARKER):
            if self.eval_script.count(marker) != 1:
                raise ValueError(f"task {self.instance_id}: its eval_script must print {marker!r} once")


def published_image(instance_id: str) -> str:
    """The image that SWE-bench publishes for an instance."""
    return f"swebench/sweb.eval.x86_64.{instance_id.replace('__', '_1776_')}:latest".lower()


@lru_cache(maxsize=1)
def tiny_rows() -> tuple[dict[str, Any], ...]:
    """The rows of the tasks that ship."""
    lines = (TINY / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)


def _cases(row: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = row[field]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"task {row['instance_id']}: {field} is text that is no JSON: {error}") from error
    if not isinstance(value, list | tuple) or not all(isinstance(case, str) for case in value):
        raise ValueError(f"task {row['instance_id']}: {field} is {value!r:.100}; expected a list of test names")
    return tuple(value)


def _snapshot(value: object, snapshots: Path, name: str) -> Snapshot:
    if not isinstance(value, Mapping) or not all(isinstance(value.get(field), str) for field in ("path", "sha256")):
        raise ValueError(f"task {name}: snapshot is {value!r:.100}; expected path, sha256 and, if you like, dest")
    destination = value.get("dest", "/testbed")
    if not isinstance(destination, str) or not destination.startswith("/") or destination == "/":
        raise ValueError(f"task {name}: snapshot.dest is {destination!r}; expected an absolute path below /")
    return Snapshot(path=snapshots / value["path"], sha256=value["sha256"], destination=destination)
