"""What a try on a node of a component brought back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from rollart_hpc.slurm.doctor.machine_facts import Limits

MARK = "rollart:"
"""Begins each line of a report: a site's prologs print too."""
_ENDED_BY_SLURM = ("CANCELLED", "oom-kill", "Out Of Memory", "Node failure", "NODE FAILURE")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What one node of a component answered."""

    node: str
    limits: Limits
    free_mb: int | None
    reads_token: bool
    """It read what this machine wrote beside the run's directory."""
    writes: bool
    """It can write there."""
    has_directory: bool
    """The directory of the submission is there."""
    model_bytes: int | None
    """Size of the model's config.json; None when there is none."""
    version: str | None
    """Version of rollart_hpc that the interpreter imports there; None when that failed or was not tried."""
    python_error: str | None
    """Why it does not; None when it does or was not tried."""
    interfaces: tuple[str, ...] | None
    """Network interfaces with an IPv4 address; None where the interpreter did not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEarly:
    """A node began the try, and its shell ended before the end: the batch script's would, too."""

    node: str
    exit_code: int
    line: str | None
    """The line of ``slurm.setup`` that it was at; None outside of them, or when they cannot be read."""
    words: str
    """What it said on standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotProbed:
    """No node answered."""

    reason: str
    busy: bool = False
    """Only because no node was free at once."""


Probe = NodeReport | EndedEarly | NotProbed


def own_version() -> str:
    """Version of rollart_hpc here."""
    return version("rollart-hpc")


def parse_report(output: str, token: str) -> NodeReport | None:
    """The report in what the node printed; None when it broke off."""
    values = _values(output)
    if "end" not in values:
        return None
    return NodeReport(
        node=values.get("node", "unknown"),
        limits=Limits(
            nofile_soft=_number(values.get("nofile_soft")),
            nofile_hard=_number(values.get("nofile_hard")),
            memlock_kb=_number(values.get("memlock")),
        ),
        free_mb=(_number(values.get("free_kb")) or 0) >> 10 or None,
        reads_token=values.get("token") == token,
        writes=values.get("writes") == "yes",
        has_directory=values.get("directory") == "yes",
        model_bytes=_number(values.get("model_bytes")),
        version=values.get("version"),
        python_error=values.get("python_error") or None,
        interfaces=tuple(values["interfaces"].split()) if "interfaces" in values else None,
    )


def parse_early_end(output: str, words: str, exit_code: int, setup: Sequence[str]) -> EndedEarly | None:
    """Where a report broke off; None when no node began one, or Slurm ended it and not its own shell."""
    values = _values(output)
    if "node" not in values or any(mark in words for mark in _ENDED_BY_SLURM):
        return None
    at = _number(values.get("setup_line"))
    said = (line for line in words.splitlines() if not line.startswith("srun:"))
    return EndedEarly(
        node=values["node"],
        exit_code=exit_code,
        line=setup[at - 1] if at and at <= len(setup) else None,
        words=" ".join(" ".join(said).split()),
    )


def _values(output: str) -> dict[str, str]:
    lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)]
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdigit() else None
