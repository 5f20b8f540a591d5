"""The classes that users derive their workers from, one for each role."""

from rollart_hpc.control_plane.environment_worker import EnvironmentCls
from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.reward_worker import RewardCls
from rollart_hpc.data_plane.worker import Worker

__all__ = ["ActorGenCls", "ActorTrainCls", "EnvironmentCls", "RewardCls", "Worker"]
