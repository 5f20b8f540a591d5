"""Asks Slurm for what `rollart_hpc.slurm.doctor.cluster_facts` records: a handful of short commands."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable

from rollart_hpc.config.slurm import ComponentOptions
from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.doctor.cluster_facts import (
    ClusterFacts,
    Qos,
    User,
    parse_associations,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_reservations,
    parse_settings,
)

_ACCOUNTING_DEADLINE_S = 10.0


def read_facts(options: Iterable[ComponentOptions]) -> ClusterFacts:
    """The cluster as it is now; of host lists, those that ``options`` name.

    Raises:
        NoSlurmError: there is no Slurm here, or its controller does not answer.
        SlurmError: Slurm refused.
    """
    wanted = list(options)
    settings = parse_settings(run_slurm("scontrol", "show", "config"))
    reservations = parse_reservations(_show("reservation"))
    named = [reservations.get(name) for option in wanted for name in (option.reservation or "").split(",")]
    lists = {text for option in wanted for text in (option.nodelist, option.exclude) if text and "/" not in text}
    lists |= {reservation.nodes for reservation in named if reservation is not None and reservation.nodes}
    qos = read_qos() if settings.accounting else None
    return ClusterFacts(
        settings=settings,
        partitions=parse_partitions(_show("partition")),
        nodes=parse_nodes(_show("node")),
        reservations=reservations,
        user=_read_user(accounting=settings.accounting),
        qos=qos,
        hostlists={text: tuple(run_slurm("scontrol", "show", "hostnames", text).split()) for text in lists},
    )


def _show(what: str) -> str:
    return run_slurm("scontrol", "show", what, "--oneliner")


def _ask_accounting(*arguments: str) -> str | None:
    """What sacctmgr says; None when it does not: a site without its data base still runs jobs."""
    try:
        return run_slurm("sacctmgr", "-nP", "show", *arguments, deadline_s=_ACCOUNTING_DEADLINE_S)
    except SlurmError:
        return None


def read_qos() -> dict[str, Qos] | None:
    """The qualities of service, None when accounting does not answer."""
    text = _ask_accounting("qos", "format=Name,GraceTime,PreemptMode,MaxWall")
    return None if text is None else parse_qos(text)


def _read_user(*, accounting: bool) -> User:
    name = pwd.getpwuid(os.getuid()).pw_name
    user = User(name=name, groups=frozenset(_group_names()), is_root=os.getuid() == 0)
    if not accounting:
        return user
    associations = _ask_accounting("assoc", f"user={name}", "format=Account,QOS")
    default = _ask_accounting("user", name, "format=DefaultAccount")
    if associations is None or default is None:
        return user
    accounts, qos = parse_associations(associations)
    return User(
        name=name,
        groups=user.groups,
        is_root=user.is_root,
        default_account=default.strip() or None,
        accounts=accounts,
        qos=qos,
    )


def _group_names() -> Iterable[str]:
    for number in {os.getgid(), *os.getgroups()}:
        try:
            yield grp.getgrgid(number).gr_name
        except KeyError:
            yield str(number)
