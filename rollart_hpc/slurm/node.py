"""Where this process runs, and how often it was put there."""

from __future__ import annotations

import os


def node_name() -> str:
    """The node's name as Slurm knows it, else the host's: virtual nodes of one host share the latter."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def restart_count() -> int:
    """How often Slurm has started this job again; 0 outside a job."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)
