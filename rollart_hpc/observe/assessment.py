"""What must hold of a finished run, checked on its summary.

The success of the *sampler* is judged, not that of the trainer's last weights: a run whose weights are never
delivered, whose gradient points the wrong way or whose advantages belong to other samples fails here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollart_hpc.errors import ConfigError
from rollart_hpc.observe.metrics import number, read_summary

_MAX_PROBE_GAP = 1e-3
_MAX_LOGPROB_GAP = 1e-4
"""Mean difference between sampler and trainer on tokens of the same version, float32."""


def require_summary(run_directory: Path) -> dict[str, Any]:
    """The summary of a run.

    Raises:
        ConfigError: there is none, or the file is something else.
    """
    summary = read_summary(run_directory)
    if not summary:
        raise ConfigError(f"{run_directory}: has no summary.json; it is written when an attempt ends")
    return summary


def assess_summary(summary: Mapping[str, Any], least_success: Mapping[str, float]) -> list[str]:
    """What does not hold, one line each; empty when all does."""
    faults: list[str] = []
    for task, least in least_success.items():
        if task not in summary["tasks"]:
            faults.append(f"task {task}: not in this run; it has {sorted(summary['tasks'])}")
        elif not (last := number(summary["tasks"][task]["success_last"])) >= least:
            faults.append(f"task {task}: success of the last steps is {last:.3f}, expected {least:g} or more")
    books = dict(summary["trajectories"])
    dispatched = books.pop("dispatched")
    if dispatched != sum(books.values()):
        faults.append(f"the ledger does not balance: {dispatched} dispatched, {sum(books.values())} accounted for")
    if summary["max_staleness_trained"] > summary["alpha"] and summary["schedule"]["stale"] == "abort":
        faults.append(
            f"a trajectory of staleness {summary['max_staleness_trained']} was trained, alpha is {summary['alpha']}"
        )
    if summary["confirmed_version"] != summary["weight_version"]:
        faults.append(
            f"generation workers are confirmed at version {summary['confirmed_version']}, the trainer is at "
            f"{summary['weight_version']}"
        )
    gap = number(summary["logprob_gap"]["mean"])
    if summary["logprob_gap"]["tokens"] and summary.get("dtype") == "float32" and not gap <= _MAX_LOGPROB_GAP:
        faults.append(f"sampler and trainer differ by {gap:.1e} per token, expected {_MAX_LOGPROB_GAP:g} or less")
    probe_gap = number(summary["probe_gap_max"])
    if summary.get("dtype") == "float32" and not probe_gap <= _MAX_PROBE_GAP:
        faults.append(f"a probe logprob was {probe_gap:.1e} off, expected {_MAX_PROBE_GAP:g} or less")
    return faults
