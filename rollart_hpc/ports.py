"""Free ports for servers, below the range from which the kernel gives ports to outgoing connections.

From that range a port that was free a moment ago may be a stranger's connection the next.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST = 10000
_USUAL_EPHEMERAL = 32768
_MIN_PORTS = 1000
_TRIES = 200
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def server_ports() -> range:
    """Ports that no outgoing connection takes; where the kernel leaves too few, the usual ones."""
    try:
        first = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = _USUAL_EPHEMERAL
    return range(_LOWEST, first if first >= _LOWEST + _MIN_PORTS else _USUAL_EPHEMERAL)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago; the caller retries when it is lost to someone else."""
    for port in random.sample(server_ports(), _TRIES):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
