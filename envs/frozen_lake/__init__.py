"""FrozenLake as a text game over many turns."""

from rollart_hpc.envs.frozen_lake.frozen_lake import FrozenLake

__all__ = ["FrozenLake"]
