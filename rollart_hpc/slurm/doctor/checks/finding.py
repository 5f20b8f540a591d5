"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rollart_hpc.config.faults import nearest
from rollart_hpc.errors import PreflightError


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """Slurm would refuse the job, never start it, or it would fail at its start."""
    WARNING = "warning"
    """It may start late, or may fail."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found, and what to change about it."""

    severity: Severity
    check: str
    """The subject in one word: partition, time, gpus, ..."""
    component: str | None
    """None is the whole job."""
    found: str
    change: str = ""

    def __str__(self) -> str:
        where = "job" if self.component is None else self.component
        return f"{where}: {self.found}" + (f"; {self.change}" if self.change else "")


def error(check: str, component: str | None, found: str, change: str) -> Finding:
    """A finding that rules the submission out."""
    return Finding(severity=Severity.ERROR, check=check, component=component, found=found, change=change)


def warning(check: str, component: str | None, found: str, change: str = "") -> Finding:
    """A finding that the user should act on."""
    return Finding(severity=Severity.WARNING, check=check, component=component, found=found, change=change)


def note(check: str, component: str | None, found: str, change: str = "") -> Finding:
    """A finding to know of."""
    return Finding(severity=Severity.NOTE, check=check, component=component, found=found, change=change)


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """The errors among them."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def raise_errors(findings: Iterable[Finding]) -> None:
    """Raises PreflightError with every error, one a line, when there is any."""
    if errors := errors_of(findings):
        raise PreflightError("\n".join(str(finding) for finding in errors))


def suggest(name: str, known: Iterable[str], what: str) -> str:
    """The end of a sentence about a name that does not exist: the near match, and all that exist."""
    names = sorted(known)
    return f"{nearest(name, names)}{what}: {', '.join(names) or 'none'}"
