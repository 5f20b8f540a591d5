"""Whether a cluster can run a run as it is configured: all checks in order, before anything is submitted.

Three sources, from cheap to dear: the config's text, what Slurm says about itself, and a try on a node of every
component. `examine` does all; `diagnose` is the pure part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.files import check_file_systems, check_probe
from rollart_hpc.slurm.doctor.checks.finding import Finding, Severity, errors_of, note
from rollart_hpc.slurm.doctor.checks.limits import check_limits
from rollart_hpc.slurm.doctor.checks.nodes import check_nodes
from rollart_hpc.slurm.doctor.checks.own_nodes import check_own_nodes
from rollart_hpc.slurm.doctor.checks.partition import check_partition, check_partition_names, check_reservation
from rollart_hpc.slurm.doctor.checks.preemption import check_preemption
from rollart_hpc.slurm.doctor.checks.scheduling import check_accounting, check_scheduler, check_store
from rollart_hpc.slurm.doctor.checks.time import check_equal_times, check_time
from rollart_hpc.slurm.doctor.cluster_facts import Partition
from rollart_hpc.slurm.doctor.cluster_query import read_facts
from rollart_hpc.slurm.doctor.machine_facts import read_machine
from rollart_hpc.slurm.doctor.node_probe import ProbePlan, probe_components
from rollart_hpc.slurm.script.allocation import Component, components
from rollart_hpc.slurm.script.render import render

_JOB_CHECKS = (
    check_scheduler,
    check_equal_times,
    check_own_nodes,
    check_preemption,
    check_store,
    check_accounting,
    check_limits,
    check_file_systems,
)
_PARTITION_CHECKS = (check_partition, check_reservation, check_time, check_nodes)


def examine(
    config: RunConfig,
    *,
    directory: Path,
    probe: bool = True,
    store_mb: int | None = None,
    last_stop_s: float | None = None,
) -> tuple[Case, list[Finding]]:
    """What was looked at and what was found; ``config`` has its site's options applied.

    Components that Slurm would refuse are not tried on nodes.

    Raises:
        ConfigError: the config asks for what no cluster can give.
        NoSlurmError: there is no Slurm here, or its controller does not answer.
        SlurmError: Slurm refused to answer.
    """
    parts = components(config)
    python = Path(config.slurm.python or sys.executable)
    # What cannot be written as a batch script is found here, before a node is tried.
    render(config, python=str(python), directory=directory)
    case = Case(
        config=config,
        components=tuple(parts),
        facts=read_facts(part.options for part in parts),
        machine=read_machine(),
        python=python,
        directory=directory,
        store_mb=store_mb,
        last_stop_s=last_stop_s,
    )
    findings = diagnose(case)
    refused = {finding.component for finding in errors_of(findings)}
    tried = [part for part in parts if part.name not in refused]
    if not probe or not tried:
        return case, findings
    plan = ProbePlan(
        python=case.python,
        directory=directory,
        run_directory=config.run.path(),
        model=config.model.path,
        leader=parts[0].name,
        setup=tuple(config.slurm.setup),
    )
    case = replace(case, probes=probe_components(tried, case.facts, plan))
    return case, diagnose(case)


def diagnose(case: Case) -> list[Finding]:
    """All findings: by component in the job's order, then those of the whole job; the worst first."""
    findings = [finding for component in case.components for finding in _of_component(case, component)]
    findings += [finding for check in _JOB_CHECKS for finding in check(case)]
    places = {component.name: index for index, component in enumerate(case.components)}
    severities = list(Severity)

    def rank(finding: Finding) -> tuple[int, int]:
        return places.get(finding.component or "", len(places)), severities.index(finding.severity)

    return sorted(findings, key=rank)


def _of_component(case: Case, component: Component) -> Iterator[Finding]:
    yield from check_partition_names(case, component)
    results = [_of_partition(case, component, partition) for partition in case.partitions_of(component)]
    # Of several partitions, Slurm takes the first that can run it: one without errors is enough.
    yield from min(results, key=lambda findings: len(errors_of(findings)), default=[])
    if len(results) > 1:
        yield note("partition", component.name, f"may run in any of {component.options.partition}; shown for the best")
    yield from check_probe(case, component)


def _of_partition(case: Case, component: Component, partition: Partition) -> list[Finding]:
    return [finding for check in _PARTITION_CHECKS for finding in check(case, component, partition)]
