"""Holds an environment to what it declares, before a run does: behind ``rollart-hpc env check`` and ``env play``."""

from rollart_hpc.data_plane.environment_kit.checks import check_environment
from rollart_hpc.data_plane.environment_kit.policies import RandomPolicy
from rollart_hpc.data_plane.environment_kit.report import Report, Verdict

__all__ = ["RandomPolicy", "Report", "Verdict", "check_environment"]
