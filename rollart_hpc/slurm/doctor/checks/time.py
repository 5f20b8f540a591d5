"""Time limits: the partition's, the QOS', and the run's own notice."""

from __future__ import annotations

from collections.abc import Iterator

from rollart_hpc.config.time_limit import time_limit_s
from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, error, note, warning
from rollart_hpc.slurm.doctor.cluster_facts import Partition
from rollart_hpc.slurm.script.allocation import Component


def check_time(case: Case, component: Component, partition: Partition) -> Iterator[Finding]:
    """The limit is within the partition's and the QOS', and longer than the run's notice.

    Slurm takes a job whose limit is too long, and `sbatch --test-only` promises it a start; it waits for ever.
    """
    name, asked = component.name, component.options.time
    limit_s = effective_limit_s(component, partition)
    if asked is None:
        which = "DefaultTime" if partition.default_time_s is not None else "MaxTime"
        found = f"no time is given: {which} of partition {partition.name} applies, {_text(limit_s)}"
        yield note("time", name, found, "set the option time")
    elif partition.max_time_s is not None and (limit_s is None or limit_s > partition.max_time_s):
        yield error(
            "time",
            name,
            f"time {asked} is above MaxTime {_text(partition.max_time_s)} of partition {partition.name}: the job would "
            "wait for ever",
            f"set the option time to {_text(partition.max_time_s)} or less",
        )
    yield from _check_qos_time(case, component, limit_s)
    notice_s = case.config.slurm.notice_s
    if limit_s is not None and limit_s <= notice_s:
        found = f"the time limit {_text(limit_s)} is no longer than slurm.notice_s = {notice_s} s"
        yield error("time", name, found, "the run would be told to stop at its start; raise time or lower notice_s")


def _check_qos_time(case: Case, component: Component, limit_s: int | None) -> Iterator[Finding]:
    qos = (case.facts.qos or {}).get(component.options.qos or "")
    if qos is None or qos.max_wall_s is None:
        return
    if limit_s is None or limit_s > qos.max_wall_s:
        yield error(
            "time",
            component.name,
            f"time {_text(limit_s)} is above MaxWall {_text(qos.max_wall_s)} of QOS {qos.name}",
            f"set the option time to {_text(qos.max_wall_s)} or less",
        )


def check_equal_times(case: Case) -> Iterator[Finding]:
    """Says when the components end at different times: the run ends with the first one."""
    limits = {
        component.name: effective_limit_s(component, partitions[0])
        for component in case.components
        if (partitions := case.partitions_of(component))
    }
    if len(set(limits.values())) > 1:
        shown = ", ".join(f"{name} {_text(limit)}" for name, limit in limits.items())
        yield warning("time", None, f"time limits differ: {shown}; the run ends with the shortest", "make them equal")


def effective_limit_s(component: Component, partition: Partition) -> int | None:
    """The limit that applies; None without limit."""
    if component.options.time is not None:
        return time_limit_s(component.options.time)
    return partition.max_time_s if partition.default_time_s is None else partition.default_time_s


def _text(seconds: int | None) -> str:
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}-{clock}" if days else clock
