"""What happens when the job is preempted: by whom, with how long a notice, and whether it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, note, warning
from rollart_hpc.slurm.doctor.checks.nodes import asks
from rollart_hpc.slurm.doctor.cluster_facts import Partition, Settings
from rollart_hpc.slurm.script.allocation import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a preempted job gets before it is killed."""

    seconds: int
    course: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Threat:
    """One way to be preempted."""

    mode: str
    """REQUEUE, CANCEL, SUSPEND, ..."""
    grace_s: int


_Threats = dict[Threat, list[tuple[Component, str]]]
"""Who may be preempted in which way, and by what."""


def preemption_notice(settings: Settings, grace_s: int) -> Notice:
    """The course of a preemption on this cluster."""
    kill = f"KILL {settings.kill_wait_s} s later"
    if grace_s == 0:
        return Notice(seconds=settings.kill_wait_s, course=f"TERM at once, {kill}, never USR2")
    if settings.user_signal:
        return Notice(seconds=grace_s, course=f"USR2 at once, TERM after {grace_s} s, {kill}")
    course = f"TERM to the workers at once, nothing to the leader, again TERM after {grace_s} s, {kill}, never USR2"
    return Notice(seconds=grace_s, course=course)


def check_preemption(case: Case) -> Iterator[Finding]:
    """Of the job as a whole: it is preempted as a whole, and only if every component may be."""
    kind = case.facts.settings.preempt_type
    if kind == "none":
        yield note("preemption", None, "this cluster preempts no jobs")
        return
    threats = _Threats()
    yield from _collect_by_qos(case, threats) if kind == "qos" else _collect_by_partition(case, threats)
    for threat, victims in threats.items():
        yield from _judge(case, threat, victims)


def _collect_by_qos(case: Case, threats: _Threats) -> Iterator[Finding]:
    for component in case.components:
        qos = (case.facts.qos or {}).get(component.options.qos or "")
        if qos is None:
            found = "preemption goes by QOS here, and this component's is not known"
            change = "see `sacctmgr show qos format=name,preempt,preemptmode,gracetime`"
            yield note("preemption", component.name, found, change)
            continue
        mode = case.facts.settings.preempt_mode if qos.preempt_mode == "CLUSTER" else qos.preempt_mode
        if mode != "OFF":
            threat = Threat(mode=mode, grace_s=qos.grace_s)
            threats.setdefault(threat, []).append((component, f"jobs that may preempt QOS {qos.name}"))


def _collect_by_partition(case: Case, threats: _Threats) -> Iterator[Finding]:
    places = [
        (component, partitions[0]) for component in case.components if (partitions := case.partitions_of(component))
    ]
    safe = [(component, partition) for component, partition in places if _is_off(partition)]
    if safe:
        named = ", ".join(f"{component.name} in {partition.name}" for component, partition in safe)
        found = f"not preempted: PreemptMode is OFF for {named}, which holds for the whole job"
        yield note("preemption", None, found)
        return
    # Whoever preempts one component ends them all, and must therefore outrank them all.
    tier = max((partition.priority_tier for _, partition in places), default=0)
    partitions = case.facts.partitions
    for component, partition in places:
        above = [name for name in case.facts.preemptors_of(partition) if partitions[name].priority_tier > tier]
        if above:
            threat = Threat(mode=partition.preempt_mode, grace_s=partition.grace_s)
            threats.setdefault(threat, []).append((component, ", ".join(above)))


def _judge(case: Case, threat: Threat, victims: list[tuple[Component, str]]) -> Iterator[Finding]:
    named = ", ".join(f"{component.name} by {source}" for component, source in victims)
    if "SUSPEND" in threat.mode:
        found = f"may be suspended ({named}): all other components then wait for that one, and time out"
        yield warning("preemption", None, found, "choose a partition that requeues")
        return
    settings, run = case.facts.settings, case.config.run
    notice = preemption_notice(settings, threat.grace_s)
    took = "" if case.last_stop_s is None else f"; your last stop took {case.last_stop_s:.0f} s"
    found = f"may be preempted ({named}): your notice is {notice.seconds} s{took}; {notice.course}"
    yield note("preemption", None, found)
    if case.last_stop_s is None:
        needed_s, name = run.stop_timeout_s, f"run.stop_timeout_s = {run.stop_timeout_s:g} s"
    else:
        needed_s, name = case.last_stop_s, f"what your last stop took, {case.last_stop_s:.0f} s"
    if notice.seconds < needed_s:
        found = f"a preemption's notice, {notice.seconds} s, is shorter than {name}"
        change = f"up to {run.checkpoint_every} steps may be trained again; lower run.checkpoint_every"
        yield warning("preemption", None, found, change)
    yield from _judge_return(case, threat, victims)


def _judge_return(case: Case, threat: Threat, victims: list[tuple[Component, str]]) -> Iterator[Finding]:
    """How the run goes on after it."""
    if "CANCEL" in threat.mode:
        found = "a preempted job is cancelled here (PreemptMode=CANCEL): Slurm does not requeue it"
    elif not case.facts.settings.requeue_by_default and any(not asks(component, "requeue") for component, _ in victims):
        found = "a preempted job is not requeued: JobRequeue=0, and the option requeue is skipped"
    else:
        return
    mode = case.config.slurm.requeue
    if mode in ("auto", "chain"):
        yield note("preemption", None, found, "the leader submits another job, which goes on with the run (chain)")
    else:
        change = f"slurm.requeue = {mode!r} submits no other job: set it to 'auto', or submit the run again by hand"
        yield warning("preemption", None, found, change)


def _is_off(partition: Partition) -> bool:
    return "OFF" in partition.preempt_mode.split(",")
