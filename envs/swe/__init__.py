"""Repairing repositories by shell commands, graded by hidden tests: SWE-bench's task."""

from rollart_hpc.envs.swe.swe import SWE

__all__ = ["SWE"]
