"""What Slurm gave this job: read by the leader from the batch script's environment, once."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from rollart_hpc.errors import PreflightError
from rollart_hpc.slurm.commands import run_slurm


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedJob:
    """A running job as its batch script sees it."""

    job_id: str
    """Of the first component; the one that srun, scancel and scontrol take."""
    node: str
    """The batch script's node: the first one of the first component."""
    nodes: tuple[tuple[str, ...], ...]
    """Names of the nodes by component."""
    is_heterogeneous: bool
    restarts: int
    """How often Slurm has started it again."""


def read_allocated_job(environment: Mapping[str, str] | None = None) -> AllocatedJob:
    """The job that this process is the batch script of.

    Raises:
        PreflightError: it runs in none.
        SlurmError: Slurm does not know the nodes.
    """
    variables = os.environ if environment is None else environment
    try:
        job_id, node, size = variables["SLURM_JOB_ID"], variables["SLURMD_NODENAME"], variables.get("SLURM_HET_SIZE")
        if size is None:
            lists = [variables["SLURM_JOB_NODELIST"]]
        else:
            lists = [variables[f"SLURM_JOB_NODELIST_HET_GROUP_{index}"] for index in range(int(size))]
    except KeyError as error:
        raise PreflightError(
            f"this is no Slurm job's batch script, {error.args[0]} is not set; submit with `rollart-hpc submit`, or "
            "run with `rollart-hpc run`"
        ) from None
    return AllocatedJob(
        job_id=job_id,
        node=node,
        nodes=tuple(_names(hostlist) for hostlist in lists),
        is_heterogeneous=size is not None,
        restarts=int(variables.get("SLURM_RESTART_COUNT", "0")),
    )


def node_address(node: str, interface: str | None) -> str:
    """The address of this node that others reach: of ``interface``, or of the name that Slurm has for the node.

    Raises:
        PreflightError: there is no such interface, or it has no IPv4 address, or the name does not resolve.
    """
    if interface is not None:
        return _interface_address(interface)
    shown = run_slurm("scontrol", "show", "node", node, "--oneliner")
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    name = found[1] if found else node
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise PreflightError(
            f"the address {name!r} of node {node} does not resolve there: {error}; set slurm.interface to the network "
            "interface that all nodes share, such as ib0"
        ) from error


def _interface_address(interface: str) -> str:
    import psutil

    addresses = psutil.net_if_addrs()
    if interface not in addresses:
        raise PreflightError(f"slurm.interface = {interface!r}: this node has only {', '.join(sorted(addresses))}")
    for address in addresses[interface]:
        if address.family is socket.AF_INET:
            return address.address
    raise PreflightError(f"slurm.interface = {interface!r} has no IPv4 address on this node; choose another")


def _names(hostlist: str) -> tuple[str, ...]:
    return tuple(run_slurm("scontrol", "show", "hostnames", hostlist).split())
