"""Disaggregated agentic RL training of LLMs as one heterogeneous Slurm job; see ARCHITECTURE.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollart_hpc.launcher.submission import submit

__all__ = ["submit"]


def __getattr__(name: str) -> object:
    # Imported on demand, so that every command starts without what only a submission needs.
    if name == "submit":
        from rollart_hpc.launcher.submission import submit

        return submit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
