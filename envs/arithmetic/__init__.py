"""One-turn sums."""

from rollart_hpc.envs.arithmetic.arithmetic import Arithmetic

__all__ = ["Arithmetic"]
