"""Limits of open files and of locked memory, where the processes will run."""

from __future__ import annotations

from collections.abc import Iterator

from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, note, warning
from rollart_hpc.slurm.doctor.machine_facts import Limits
from rollart_hpc.slurm.doctor.node_report import NodeReport

MIN_OPEN_FILES = 8192


def check_limits(case: Case) -> Iterator[Finding]:
    """Those of the nodes where they were probed, else of this machine: Slurm carries them over by default."""
    places: dict[Limits, list[str]] = {}
    for name, report in case.probes.items():
        if isinstance(report, NodeReport):
            places.setdefault(report.limits, []).append(f"{report.node} ({name})")
    for limits, nodes in (places or {case.machine.limits: ["this machine"]}).items():
        yield from _check(limits, ", ".join(nodes), gpus=any(component.gpus for component in case.components))


def _check(limits: Limits, where: str, *, gpus: bool) -> Iterator[Finding]:
    soft, hard = limits.nofile_soft, limits.nofile_hard
    if soft is not None and soft < MIN_OPEN_FILES:
        raisable = hard is None or hard >= MIN_OPEN_FILES
        number = 65536 if hard is None else min(hard, 65536)
        change = f'add "ulimit -n {number}" to slurm.setup' if raisable else f"ask the site for {MIN_OPEN_FILES}"
        yield warning("limits", None, f"a process may open {soft} files on {where}; a large run needs more", change)
    if limits.memlock_kb is not None:
        found = f"locked memory is limited to {limits.memlock_kb} KB on {where}: transfers by RDMA will fail"
        found += "" if gpus else ", those by TCP will not"
        level = warning if gpus else note
        yield level("limits", None, found, "ask the site for `memlock unlimited`, or transfer by TCP")
