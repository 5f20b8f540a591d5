"""Whether the partition has nodes, enough of them, and up, that satisfy all that a component asks for at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, error, note, suggest, warning
from rollart_hpc.slurm.doctor.cluster_facts import ClusterFacts, Node, Partition
from rollart_hpc.slurm.script.allocation import Component, gigabytes

_MAX_NAMED = 4
_FEATURE = re.compile(r"[^\s&|()\[\],*!]+")


def check_nodes(case: Case, component: Component, partition: Partition) -> Iterator[Finding]:
    """Node counts, then each resource alone, then all together."""
    counts = list(_check_counts(component, partition))
    if not case.facts.nodes:
        yield from counts
        yield note("nodes", component.name, "this site hides its nodes: sizes and GPUs were not checked")
        return
    nodes = case.facts.nodes_of(partition.name)
    single = [
        *counts,
        *_check_lists(case.facts, component, partition),
        *_check_features(component, nodes),
        *_check_cpus(component, partition, nodes),
        *_check_memory(case.facts, component, partition, nodes),
        *_check_gpus(component, partition, nodes),
    ]
    yield from single or _check_together(case.facts, component, partition, nodes)


def _check_counts(component: Component, partition: Partition) -> Iterator[Finding]:
    name, wanted = component.name, component.nodes
    most = min(partition.total_nodes, partition.max_nodes or partition.total_nodes)
    if wanted > most:
        found = f"asks for {wanted} nodes; partition {partition.name} gives at most {most}"
        yield error("nodes", name, found, f"set pools.{name}.slurm.nodes to {most} or less")
    if wanted < partition.min_nodes:
        found = f"asks for {wanted} nodes; partition {partition.name} demands {partition.min_nodes}"
        yield error("nodes", name, found, f"set pools.{name}.slurm.nodes to {partition.min_nodes} or more")


def _check_lists(facts: ClusterFacts, component: Component, partition: Partition) -> Iterator[Finding]:
    for option in ("nodelist", "exclude"):
        for node in facts.hostlists.get(getattr(component.options, option) or "", ()):
            if node not in facts.nodes:
                hint = suggest(node, (known.name for known in facts.nodes_of(partition.name)), "its partition has")
                yield error("nodes", component.name, f"{option}: node {node!r} does not exist", hint)
            elif option == "nodelist" and partition.name not in facts.nodes[node].partitions:
                found = f"nodelist: node {node} is not in partition {partition.name}"
                yield error("nodes", component.name, found, f"it is in {', '.join(facts.nodes[node].partitions)}")


def _check_features(component: Component, nodes: list[Node]) -> Iterator[Finding]:
    known = {feature for node in nodes for feature in node.features}
    for feature in _FEATURE.findall(component.options.constraint or ""):
        if feature not in known and not feature.isdigit():
            hint = suggest(feature, known, "its partition's nodes have")
            yield error("constraint", component.name, f"no node has the feature {feature!r}", hint)


def _check_cpus(component: Component, partition: Partition, nodes: list[Node]) -> Iterator[Finding]:
    largest = max((node.cpus for node in nodes), default=0)
    most = min(largest, partition.max_cpus_per_node or largest)
    if asks(component, "cpus-per-task") and component.cpus > most:
        found = f"asks for {component.cpus} CPUs per node; nodes of partition {partition.name} have {most}"
        yield error("cpus", component.name, found, _relief(component, "cpus", "cpus_per_node"))


def _check_memory(
    facts: ClusterFacts, component: Component, partition: Partition, nodes: list[Node]
) -> Iterator[Finding]:
    limits = [limit for limit in (partition.max_mem_per_node_mb, facts.settings.max_mem_per_node_mb) if limit]
    most = min([max((node.memory_mb for node in nodes), default=0), *limits])
    if asks(component, "mem") and component.mem_mb > most:
        gives = f"partition {partition.name} gives {gigabytes(most)}"
        found = f"asks for {gigabytes(component.mem_mb)} GB of memory per node; {gives}"
        yield error("memory", component.name, found, _relief(component, "mem_gb", "mem_gb"))


def _check_gpus(component: Component, partition: Partition, nodes: list[Node]) -> Iterator[Finding]:
    if not component.gpus:
        return
    kind, where = wanted_type(component), f"partition {partition.name}"
    offers = {kind: max(node.gpus.get(kind, 0) for node in nodes) for node in nodes for kind in node.gpus}
    listed = ", ".join(f"{number} x {kind or 'gpu'}" for kind, number in sorted(offers.items())) or "no GPUs"
    if kind is not None and kind not in offers:
        found = f"no node of {where} has GPUs of type {kind!r}; its nodes have {listed}"
        # Slurm tells upper from lower case in a type.
        yield error("gpus", component.name, found, suggest(kind, offers, "set the option gpu_type to one of"))
        return
    most = max((_gpus(node, kind) for node in nodes), default=0)
    if component.gpus > most:
        found = f"asks for {component.gpus} GPUs per node; nodes of {where} have {listed}"
        yield error("gpus", component.name, found, _relief(component, "gpus", None))


def _check_together(
    facts: ClusterFacts, component: Component, partition: Partition, nodes: list[Node]
) -> Iterator[Finding]:
    fits = [node for node in nodes if satisfies(facts, component, node)]
    name, asked = component.name, _request(component)
    if len(fits) < component.nodes:
        where = f"{len(fits)} of {len(nodes)} nodes of partition {partition.name}"
        found = f"{where} have {asked}; it needs {component.nodes}"
        yield error("nodes", name, found, "ask for less per node, for fewer nodes, or for another partition")
        return
    out = [node for node in fits if not node.usable]
    named = ", ".join(_describe(node) for node in out[:_MAX_NAMED]) + (", ..." if len(out) > _MAX_NAMED else "")
    if len(fits) - len(out) < component.nodes:
        found = f"{len(fits) - len(out)} of {component.nodes} nodes are up; out of service: {named}"
        yield warning("nodes", name, found, "the job waits until they are back")
    elif out:
        yield note("nodes", name, f"out of service in partition {partition.name}: {named}")


def satisfies(facts: ClusterFacts, component: Component, node: Node) -> bool:
    """The node has what the component asks of one, and is not excluded."""
    excluded = facts.hostlists.get(component.options.exclude or "", ())
    demands: list[tuple[bool, Callable[[], bool]]] = [
        (asks(component, "cpus-per-task"), lambda: node.cpus >= component.cpus),
        (asks(component, "mem"), lambda: node.memory_mb >= component.mem_mb),
        (component.gpus > 0, lambda: _gpus(node, wanted_type(component)) >= component.gpus),
        (component.options.constraint is not None, lambda: _has_features(component.options.constraint or "", node)),
        (component.options.reservation is not None, lambda: _is_reserved(facts, component, node)),
    ]
    return node.name not in excluded and all(met() for applies, met in demands if applies)


def _has_features(constraint: str, node: Node) -> bool:
    """Plain conjunctions and disjunctions; anything richer is Slurm's to judge and counts as met."""
    names = set(_FEATURE.findall(constraint))
    if re.search(r"[()*!]", constraint) or ("|" in constraint and re.search(r"[&,]", constraint)):
        return True
    return bool(names & node.features) if "|" in constraint else names <= node.features


def _is_reserved(facts: ClusterFacts, component: Component, node: Node) -> bool:
    names = (component.options.reservation or "").split(",")
    lists = [facts.reservations[name].nodes for name in names if name in facts.reservations]
    return not lists or any(nodes is None or node.name in facts.hostlists.get(nodes, ()) for nodes in lists)


def asks(component: Component, option: str) -> bool:
    """The site does not refuse this sbatch option."""
    return option not in {name.lstrip("-") for name in component.options.skip}


def wanted_type(component: Component) -> str | None:
    """The GPU type that the request names, if it names one."""
    return None if component.options.gpu_form == "none" else component.options.gpu_type


def _gpus(node: Node, kind: str | None) -> int:
    return node.num_gpus if kind is None else node.gpus.get(kind, 0)


def _relief(component: Component, resource: str, option: str | None) -> str:
    start = f"spread pools.{component.name} over more slurm.nodes, lower its workers or their resources.*.{resource}"
    return start if option is None or getattr(component.options, option) is None else f"lower the option {option}"


def _request(component: Component) -> str:
    parts = [
        f"{component.cpus} CPUs" if asks(component, "cpus-per-task") else "",
        f"{gigabytes(component.mem_mb)} GB" if asks(component, "mem") else "",
        f"{component.gpus} GPUs" if component.gpus else "",
        f"features {component.options.constraint}" if component.options.constraint else "",
        f"a place in reservation {component.options.reservation}" if component.options.reservation else "",
    ]
    return ", ".join(part for part in parts if part) + (" and are not excluded" if component.options.exclude else "")


def _describe(node: Node) -> str:
    return f"{node.name} ({node.reason or '+'.join(sorted(node.states))})"
