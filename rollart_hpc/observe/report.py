"""The final table and chart of a run, from what it left on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rollart_hpc.observe.metrics import number, read_metrics, read_summary
from rollart_hpc.observe.sparkline import sparkline


def print_report(console: Console, run_directory: Path) -> None:
    """Prints success before and after, trajectories by outcome, versions, throughput and where the time went."""
    summary = read_summary(run_directory)
    if not summary:
        return
    records = read_metrics(run_directory)
    for table in (_tasks(summary, records), _books(summary), _versions(summary), _seconds(summary)):
        console.print()
        console.print(table)
    if advice := summary["affinity"]["advice"]:
        console.print(f"\nadvice: {advice}", highlight=False, markup=False)


def _tasks(summary: dict[str, Any], records: list[dict[str, Any]]) -> Table:
    table = Table("task", "success first", "last", "by step", "turns", "prefix cached", box=None)
    classes = {hardware for task in summary["tasks"].values() for hardware in task["tokens_by_hardware"]}
    if len(classes) > 1:
        table.add_column("tokens generated on")
    for name, task in summary["tasks"].items():
        curve = [number(record["tasks"][name]["success"]) for record in records if name in record["tasks"]]
        table.add_row(
            name,
            f"{number(task['success_first']):.2f}",
            f"{number(task['success_last']):.2f}",
            sparkline(curve),
            f"{task['turns_mean']:.1f}",
            f"{task['prefix_cached_share']:.0%}",
            *([_shares(task["tokens_by_hardware"])] if len(classes) > 1 else []),
        )
    return table


def _shares(tokens: dict[str, int]) -> str:
    total = max(1, sum(tokens.values()))
    most_first = sorted(tokens.items(), key=lambda item: -item[1])
    return ", ".join(f"{hardware} {count / total:.1%}" for hardware, count in most_first)


def _books(summary: dict[str, Any]) -> Table:
    table = Table(*summary["trajectories"], title="trajectories", title_justify="left", box=None)
    table.add_row(*(str(count) for count in summary["trajectories"].values()))
    return table


def _versions(summary: dict[str, Any]) -> Table:
    table = Table("steps", "published", "confirmed", "staleness", "tokens/s", "logprob gap", box=None)
    table.add_row(
        str(summary["steps"]),
        str(summary["published_version"]),
        str(summary["confirmed_version"]),
        str(summary["max_staleness_trained"])
        + (f" of {summary['alpha']}" if summary["schedule"]["stale"] == "abort" else ", not bounded"),
        f"{summary['tokens_per_s']:.0f}",
        f"{number(summary['logprob_gap']['mean']):.1e}",
    )
    return table


def _seconds(summary: dict[str, Any]) -> Table:
    seconds = summary["seconds"]
    table = Table("where the time went", "seconds", "share", box=None)
    for phase, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        table.add_row(phase, f"{spent:.1f}", f"{spent / max(1e-9, seconds['total']):.0%}")
    return table
