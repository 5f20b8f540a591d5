"""Mathematical problems under the rules of GEM's math environments."""

from rollart_hpc.envs.gem_math.gem_math import GemMath

__all__ = ["GemMath"]
