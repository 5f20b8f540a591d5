"""The paper's names in one place (Listing 1): ``import rollart_hpc.distributed as rdist``."""

from rollart_hpc.control_plane.environment_worker import EnvironmentCls
from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.declarations import Mode, hw_mapping, register, register_serverless
from rollart_hpc.data_plane.reward_worker import RewardCls
from rollart_hpc.data_plane.worker import Worker

__all__ = [
    "ActorGenCls",
    "ActorTrainCls",
    "Cluster",
    "EnvironmentCls",
    "Mode",
    "RewardCls",
    "Worker",
    "hw_mapping",
    "register",
    "register_serverless",
]
