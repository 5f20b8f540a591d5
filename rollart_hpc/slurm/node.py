"""Where this process runs."""

from __future__ import annotations

import os


def node_name() -> str:
    """The node's name as Slurm knows it, else the host's: virtual nodes of one host share the latter."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename
