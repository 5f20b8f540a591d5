"""SWE-bench's rules: which statuses of which tests solve a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollart_hpc.envs.swe.grading.log_parsers import STATUSES
from rollart_hpc.envs.swe.instance import Instance

_PASSING = frozenset({"PASSED", "XFAIL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a patch."""

    resolved: bool
    reason: str
    """``resolved``, ``tests_failed``, or why it was not judged by its tests: ``empty``, ``malformed``, ``not_applied``,
    ``not_finished``, ``tampered``, ``timeout``, ``memory``, ``processes``, ``disk``."""
    fail_to_pass: float = 0.0
    """Share of the tests that must begin to pass."""
    pass_to_pass: float = 0.0
    """Share of those that must go on passing; 1 where there are none."""
    dropped: tuple[str, ...] = ()
    """Files that the patch may not change."""
    log: str = ""
    """The end of what the tests printed, for people."""


def worst_statuses(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The status of each test; the worst, where there are several: text that claims a pass hides no failure."""
    worst: dict[str, str] = {}
    for test, status in pairs:
        if test not in worst or STATUSES.index(status) > STATUSES.index(worst[test]):
            worst[test] = status
    return worst


def verdict_of(statuses: Mapping[str, str], instance: Instance, *, log: str = "") -> Verdict:
    """Judges the statuses: all of FAIL_TO_PASS pass, all of PASS_TO_PASS pass or are skipped; absence is failure."""
    begun = [_status(test, statuses) in _PASSING for test in instance.fail_to_pass]
    kept = [_status(test, statuses) in _PASSING | {"SKIPPED"} for test in instance.pass_to_pass]
    resolved = all(begun) and all(kept)
    return Verdict(
        resolved=resolved,
        reason="resolved" if resolved else "tests_failed",
        fail_to_pass=sum(begun) / len(begun),
        pass_to_pass=sum(kept) / len(kept) if kept else 1.0,
        log=log,
    )


def _status(test: str, statuses: Mapping[str, str]) -> str | None:
    if test in statuses or test.count("[") <= test.count("]"):
        return statuses.get(test)
    # Hundreds of names in SWE-bench are cut within their parameter; they stand for all that begin so, if those agree.
    candidates = [status for name, status in statuses.items() if name.startswith(test)]
    agreed = len({status in _PASSING for status in candidates}) == 1
    return candidates[0] if agreed else None
