"""Whether the user may submit a component to its partition, under its account, QOS and reservation."""

from __future__ import annotations

from collections.abc import Iterator

from rollart_hpc.slurm.doctor.checks.case import Case
from rollart_hpc.slurm.doctor.checks.finding import Finding, error, note, suggest, warning
from rollart_hpc.slurm.doctor.cluster_facts import Partition, Reservation, User
from rollart_hpc.slurm.script.allocation import Component


def check_partition_names(case: Case, component: Component) -> Iterator[Finding]:
    """Every named partition exists; where none is named there is a default."""
    name, existing = component.name, case.facts.partitions
    if component.options.partition is None:
        if case.facts.default_partition() is None:
            yield error(
                "partition",
                name,
                "no partition is given, and the cluster has no default one",
                f"set pools.{name}.slurm.partition, or the partition of its hardware in the site profile; "
                + suggest("", existing, "partitions that you see"),
            )
        return
    for wanted in component.options.partition.split(","):
        if wanted not in existing:
            hint = suggest(wanted, existing, "partitions that you see")
            yield error("partition", name, f"partition {wanted!r} does not exist", hint)


def check_partition(case: Case, component: Component, partition: Partition) -> Iterator[Finding]:
    """It is up, and lets this user, account and QOS in."""
    name, user = component.name, case.facts.user
    if partition.state in {"INACTIVE", "DRAIN"}:
        found = f"partition {partition.name} is {partition.state}: it takes no jobs"
        yield error("partition", name, found, "choose another, or ask the site")
    elif partition.state != "UP":
        found = f"partition {partition.name} is {partition.state}: jobs wait until it is up again"
        yield warning("partition", name, found, "choose another, or ask the site")
    if partition.root_only and not user.is_root:
        yield error("partition", name, f"partition {partition.name} is for root only", "choose another")
    if partition.needs_reservation and component.options.reservation is None:
        found = f"partition {partition.name} takes only jobs with a reservation"
        yield error("partition", name, found, "set the option reservation")
    if partition.allow_groups and not user.is_root and not user.groups & set(partition.allow_groups):
        yield error(
            "partition",
            name,
            f"partition {partition.name} is for the groups {', '.join(partition.allow_groups)}; {user.name} is in "
            f"{', '.join(sorted(user.groups))}",
            "choose another",
        )
    yield from _check_account(case, component, partition)
    yield from _check_qos(case, component, partition)


def _check_account(case: Case, component: Component, partition: Partition) -> Iterator[Finding]:
    user = case.facts.user
    account = component.options.account or user.default_account
    allowed, denied = partition.allow_accounts, partition.deny_accounts or ()
    if allowed and account is None:
        found = f"partition {partition.name} is for the accounts {', '.join(allowed)}, and no account is given"
        yield error("account", component.name, found, "set the option account to one of them")
    elif allowed and account not in allowed:
        found = f"partition {partition.name} does not take account {account!r}"
        yield error("account", component.name, found, suggest(account or "", allowed, "it takes"))
    elif account is not None and account in denied:
        found = f"partition {partition.name} refuses account {account!r}"
        yield error("account", component.name, found, "set another account or partition")
    if user.accounts is not None and "associations" in case.facts.settings.enforced:
        yield from _check_association(component, user, account)


def _check_association(component: Component, user: User, account: str | None) -> Iterator[Finding]:
    accounts = user.accounts or frozenset[str]()
    if account is None:
        found = f"no account is given, and {user.name} has no default one"
        yield error("account", component.name, found, suggest("", accounts, "accounts of yours"))
    elif account not in accounts:
        found = f"{user.name} may not use account {account!r}"
        yield error("account", component.name, found, suggest(account, accounts, "accounts of yours"))


def _check_qos(case: Case, component: Component, partition: Partition) -> Iterator[Finding]:
    qos, known, user = component.options.qos, case.facts.qos, case.facts.user
    if qos is None:
        return
    if known is not None and qos not in known:
        yield error("qos", component.name, f"QOS {qos!r} does not exist", suggest(qos, known, "there are"))
    elif user.qos is not None and qos not in user.qos and "qos" in case.facts.settings.enforced:
        yield error("qos", component.name, f"{user.name} may not use QOS {qos!r}", suggest(qos, user.qos, "yours are"))
    elif partition.allow_qos and qos not in partition.allow_qos:
        found = f"partition {partition.name} does not take QOS {qos!r}"
        yield error("qos", component.name, found, suggest(qos, partition.allow_qos, "it takes"))
    elif partition.deny_qos and qos in partition.deny_qos:
        found = f"partition {partition.name} refuses QOS {qos!r}"
        yield error("qos", component.name, found, "set another QOS or partition")


def check_reservation(case: Case, component: Component, partition: Partition) -> Iterator[Finding]:
    """The reservation exists, is for this user and this partition, and has begun."""
    if component.options.reservation is None:
        return
    for wanted in component.options.reservation.split(","):
        reservation = case.facts.reservations.get(wanted)
        if reservation is None:
            hint = suggest(wanted, case.facts.reservations, "reservations that you see")
            yield error("reservation", component.name, f"reservation {wanted!r} does not exist", hint)
        else:
            yield from _check_one_reservation(case, component, partition, reservation)


def _check_one_reservation(
    case: Case, component: Component, partition: Partition, reservation: Reservation
) -> Iterator[Finding]:
    user, name = case.facts.user, component.name
    account = component.options.account or user.default_account
    by_user = reservation.users is not None and user.name in reservation.users
    by_account = reservation.accounts is not None and account in reservation.accounts
    # A leading minus excludes; who then is in is Slurm's to say.
    excludes = any(entry.startswith("-") for entry in (reservation.users or ()) + (reservation.accounts or ()))
    if (reservation.users or reservation.accounts) and not by_user and not by_account and not excludes:
        found = (
            f"reservation {reservation.name} is for users {', '.join(reservation.users or ('any',))}, accounts "
            f"{', '.join(reservation.accounts or ('any',))}"
        )
        yield error("reservation", name, found, "ask the site to add you, or leave it out")
    if reservation.partition not in {None, partition.name}:
        found = f"reservation {reservation.name} is in partition {reservation.partition}, not {partition.name}"
        yield error("reservation", name, found, "change one of the two")
    if reservation.num_nodes is not None and reservation.num_nodes < component.nodes:
        found = f"reservation {reservation.name} has {reservation.num_nodes} nodes, {component.nodes} are asked for"
        yield warning("reservation", name, found, "lower the option nodes, or leave the reservation out")
    if reservation.state == "INACTIVE":
        yield note("reservation", name, f"reservation {reservation.name} starts at {reservation.start}")
