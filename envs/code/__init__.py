"""Programming problems of one turn."""

from rollart_hpc.envs.code.code import Code

__all__ = ["Code"]
