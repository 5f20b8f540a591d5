"""GEM's language games."""

from rollart_hpc.envs.gem_game.gem_game import GemGame

__all__ = ["GemGame"]
