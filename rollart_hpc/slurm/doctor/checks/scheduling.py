"""The scheduler and the accounting, for the job as a whole; and the leader's memory."""

from __future__ import annotations

from collections.abc import Iterator

from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, error, note
from rollart_hpc.slurm.script.allocation import share_of


def check_scheduler(case: Case) -> Iterator[Finding]:
    """A heterogeneous job is started by the backfill scheduler only."""
    settings = case.facts.settings
    if len(case.components) < 2:
        return
    if settings.scheduler != "backfill":
        yield error(
            "scheduler",
            None,
            f"SchedulerType is sched/{settings.scheduler}: several components are started by sched/backfill only",
            "put all workers into one pool, or ask the site",
        )
    else:
        found = f"{len(case.components)} components start together, by backfill: it looks every "
        yield note("scheduler", None, f"{found}{settings.backfill_interval_s} s, and all nodes must be free at once")


def check_accounting(case: Case) -> Iterator[Finding]:
    """Says whether ended jobs can be asked about."""
    if not case.facts.settings.accounting:
        yield note("accounting", None, "no accounting: the state of ended jobs comes from the run's own files")


def check_store(case: Case) -> Iterator[Finding]:
    """The weight store fits into the leader's memory."""
    if case.store_mb is None or not case.components:
        return
    leader = case.components[0]
    has_mb = share_of(case.config, leader.name, "leader").mem_mb
    if case.store_mb > has_mb:
        yield error(
            "memory",
            leader.name,
            f"the weight store needs {case.store_mb} MB of the leader's memory, which has {has_mb} MB",
            f"raise resources.leader.mem_gb to {case.store_mb / 1024 + 1:.0f} or more, or lower weights.versions_kept",
        )
