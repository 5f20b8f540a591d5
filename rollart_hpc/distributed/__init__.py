"""The paper's names in one place (Listing 1): ``import rollart_hpc.distributed as rdist``.

`get` makes the package stand where the listing has Ray: ``import rollart_hpc.distributed as ray``.
"""

from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.declarations import Mode, hw_mapping, register, register_serverless
from rollart_hpc.data_plane.plain_methods import get
from rollart_hpc.distributed.worker import ActorGenCls, ActorTrainCls, EnvironmentCls, RewardCls, Worker
from rollart_hpc.launcher.deployment import Deployment, deploy
from rollart_hpc.resource_plane.resource_manager import Placement, ResourceManager

__all__ = [
    "ActorGenCls",
    "ActorTrainCls",
    "Cluster",
    "Deployment",
    "EnvironmentCls",
    "Mode",
    "Placement",
    "ResourceManager",
    "RewardCls",
    "Worker",
    "deploy",
    "get",
    "hw_mapping",
    "register",
    "register_serverless",
]
