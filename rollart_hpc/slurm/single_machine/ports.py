"""Ports for a cluster: fixed ones, since slurm.conf names them before anything listens."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

import msgspec

from rollart_hpc.errors import PreflightError
from rollart_hpc.ports import server_ports
from rollart_hpc.slurm.single_machine.options import node_names

_TRIES = 200


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive ports of one cluster."""

    slurmctld: int
    slurmdbd: int
    nodes: dict[str, int]


def free_ports() -> Ports:
    """A block of ports that was free a moment ago; the caller takes another one when it is lost to someone else.

    Raises:
        PreflightError: no block was found.
    """
    names = node_names()
    size = 2 + len(names)
    for _ in range(_TRIES):
        first = random.choice(server_ports()[:-size])
        if _all_free(range(first, first + size)):
            nodes = {name: first + 2 + offset for offset, name in enumerate(names)}
            return Ports(slurmctld=first, slurmdbd=first + 1, nodes=nodes)
    raise PreflightError(f"no {size} free ports in a row in {server_ports()}; end what holds them")


def is_listening(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _all_free(block: range) -> bool:
    with ExitStack() as probes:
        try:
            for port in block:
                probes.enter_context(socket.socket()).bind(("", port))
        except OSError:
            return False
    return True
