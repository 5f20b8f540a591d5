"""Whether all components find nodes at the same time: Slurm gives every component of a het job nodes of its own.

Components that each fit may therefore still never start together, in one partition or in several that share nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, error, warning
from rollart_hpc.slurm.doctor.checks.nodes import satisfies
from rollart_hpc.slurm.script.allocation import Component

_RULE = "each component of a job needs nodes of its own"


def check_own_nodes(case: Case) -> Iterator[Finding]:
    """More nodes than the components' partitions have is an error, more than are in service a warning."""
    if crowd := _crowd(case, usable_only=False):
        names, wanted, most = crowd
        found = f"{names} ask for {wanted} nodes together and share {most}: {_RULE}, this job would never start"
        yield error("nodes", None, found, "make one pool of them, or give one another partition")
    elif crowd := _crowd(case, usable_only=True):
        names, wanted, most = crowd
        found = f"{names} ask for {wanted} nodes together, of those that they share {most} are up: {_RULE}"
        yield warning("nodes", None, found, "the job waits until more are back")


def _crowd(case: Case, *, usable_only: bool) -> tuple[str, int, int] | None:
    """Components that cannot have nodes at once, how many they want, and how many there are for them."""
    choices = {part.name: _choices(case, part, usable_only=usable_only) for part in case.components}
    # One that has too few by itself is `check_nodes`'s to say.
    wanted = {part.name: part.nodes for part in case.components if len(choices[part.name]) >= part.nodes}
    names = _stuck(wanted, choices)
    if not names:
        return None
    shared = set[str]().union(*(choices[name] for name in names))
    return ", ".join(name for name in wanted if name in names), sum(wanted[name] for name in names), len(shared)


def _choices(case: Case, component: Component, *, usable_only: bool) -> frozenset[str]:
    """Names of the nodes that it may get."""
    partitions = case.partitions_of(component)
    if not case.facts.nodes:
        # Names do not matter where nodes are hidden, only how many there are.
        return frozenset(f"{place.name}/{index}" for place in partitions for index in range(place.total_nodes))
    named = case.facts.hostlists.get(component.options.nodelist or "", ())
    return frozenset(
        node.name
        for partition in partitions
        for node in case.facts.nodes_of(partition.name)
        if satisfies(case.facts, component, node)
        and (node.usable or not usable_only)
        # A longer request is filled up with nodes that are not in the list.
        and (node.name in named or len(named) < component.nodes)
    )


def _stuck(wanted: Mapping[str, int], choices: Mapping[str, Collection[str]]) -> set[str]:
    """Components that want more nodes together than there are for them; empty when all can be served.

    A matching by augmenting paths: a component takes a free node, or one whose holder finds another for it. Where that
    fails, all nodes of the components that were asked are held by them (Hall's theorem).
    """
    holders: dict[str, str] = {}

    def serve(name: str, asked: set[str]) -> bool:
        asked.add(name)
        for node in choices[name]:
            if node not in holders:
                holders[node] = name
                return True
        for node in choices[name]:
            if holders[node] not in asked and serve(holders[node], asked):
                holders[node] = name
                return True
        return False

    for name, count in wanted.items():
        for _ in range(count):
            asked: set[str] = set()
            if not serve(name, asked):
                return asked
    return set()
