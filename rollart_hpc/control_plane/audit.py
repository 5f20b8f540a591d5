"""The audit: whether a run lost nothing and did nothing twice, from its files alone.

Valid at any moment of a run: while it goes on, after a kill, between two attempts. What is written first is read last,
so that a run which goes on meanwhile does not seem to contradict itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.control_plane.books import Books
from rollart_hpc.control_plane.journal import JOURNAL_DIRECTORY, JournalReader
from rollart_hpc.control_plane.ledger import LedgerCounts
from rollart_hpc.errors import ConfigError
from rollart_hpc.observe.metrics import read_summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the files of a run say about it."""

    findings: tuple[str, ...]
    """What does not hold; empty when the books do."""
    notes: tuple[str, ...]
    """What is worth knowing and breaks nothing."""
    balances: dict[str, LedgerCounts]
    """Of each task."""
    num_batches: int
    num_attempts: int
    last_step: int
    """Of metrics.jsonl."""

    @property
    def total(self) -> LedgerCounts:
        """The balance of the whole run."""
        return total_of(self.balances)


class _MetricsLine(msgspec.Struct):
    step: int


class _RunSection(msgspec.Struct):
    steps: int


class _Config(msgspec.Struct):
    run: _RunSection


def audit(run_directory: Path) -> Audit:
    """Verifies a run.

    Raises:
        JournalError: the journal was written by another version.
    """
    findings: list[str] = []
    notes: list[str] = []
    try:
        summary = read_summary(run_directory)
    except ConfigError as error:
        findings.append(str(error))
        summary = {}
    last_step = _last_step_of_metrics(run_directory, findings, notes)
    books = Books()
    journal = JournalReader(run_directory)
    for record in journal:
        books.add(record)
    is_done = _is_done(run_directory, summary, books)
    books.close(trained_steps=books.num_batches if is_done else 0)
    if last_step > books.num_batches:
        findings.append(f"metrics.jsonl goes to step {last_step}, but there are only {books.num_batches} batches")
    if is_done:
        findings += _check_summary(summary, books, last_step)
    _check_damage(run_directory, journal, findings, notes)
    return Audit(
        findings=(*books.findings, *findings),
        notes=(*books.notes, *notes),
        balances=books.balances(),
        num_batches=books.num_batches,
        num_attempts=books.num_attempts,
        last_step=last_step,
    )


def read_balances(run_directory: Path) -> dict[str, LedgerCounts]:
    """The balance of each task, without any verification."""
    books = Books()
    for record in JournalReader(run_directory):
        books.add(record)
    return books.balances()


def total_of(balances: dict[str, LedgerCounts]) -> LedgerCounts:
    """The sum over all tasks."""
    outcomes: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    for balance in balances.values():
        outcomes.update(balance.outcomes)
        causes.update(balance.causes)
    return LedgerCounts(
        dispatched=sum(balance.dispatched for balance in balances.values()),
        pending=sum(balance.pending for balance in balances.values()),
        outcomes=dict(outcomes),
        causes=dict(causes),
    )


def _last_step_of_metrics(run_directory: Path, findings: list[str], notes: list[str]) -> int:
    """The last step of metrics.jsonl, whose lines must be those of steps 1, 2, 3, ..."""
    path = run_directory / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    last = 0
    for number, line in enumerate(lines, start=1):
        try:
            step = msgspec.json.decode(line, type=_MetricsLine).step
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if number == len(lines):
                notes.append("metrics.jsonl: the last line was not written whole")
            else:
                findings.append(f"metrics.jsonl: line {number} cannot be read")
            continue
        if step <= last:
            findings.append(f"metrics.jsonl has step {step} again after step {last}")
        elif step != last + 1:
            findings.append(f"metrics.jsonl has step {step} where step {last + 1} was due")
        last = max(step, last)
    return last


def _is_done(run_directory: Path, summary: dict[str, Any], books: Books) -> bool:
    """Whether the summary is of the newest attempt and says that all is trained."""
    try:
        steps = msgspec.json.decode((run_directory / "config.json").read_bytes(), type=_Config).run.steps
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return bool(summary) and summary.get("attempt") == books.attempt and summary.get("steps") == steps


def _check_summary(summary: dict[str, Any], books: Books, last_step: int) -> list[str]:
    total = total_of(books.balances())
    compared = {
        "steps": (summary["steps"], books.num_batches),
        "steps and the last of metrics.jsonl": (summary["steps"], last_step),
        "trajectories": (summary.get("trajectories"), total.as_summary()),
        "causes": (summary.get("causes"), total.causes),
    }
    return [
        f"summary.json says {name} = {said}, the run's files say {found}"
        for name, (said, found) in compared.items()
        if said != found
    ]


def _check_damage(run_directory: Path, journal: JournalReader, findings: list[str], notes: list[str]) -> None:
    aside = sorted((run_directory / JOURNAL_DIRECTORY).glob("*.damaged-*"))
    if aside:
        size_bytes = sum(path.stat().st_size for path in aside)
        notes.append(f"{size_bytes} bytes of the journal could not be read and were set aside: {aside[0]}, ...")
    damage = journal.damage
    if damage is None:
        return
    if damage.is_torn:
        notes.append(f"{damage}: the end of an event that was not written whole; the next attempt sets it aside")
    else:
        findings.append(f"{damage}: what happened from there on cannot be verified")
