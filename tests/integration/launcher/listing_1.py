"""Listing 1 of the paper as it stands there, but for the import root, `prompt` in `generate` (which the listing never
defines), and Ray, whose `get` is ours; `distributed.worker` is spelled out, since an alias is no package."""

from typing import List  # noqa: UP035

import rollart_hpc.distributed as ray
import rollart_hpc.distributed as rdist
from rollart_hpc.distributed import ResourceManager as RM  # noqa: N817
from rollart_hpc.distributed.worker import ActorGenCls, ActorTrainCls, RewardCls


# 1. Single-controller example
class MyActorTrain(ActorTrainCls):
    @rdist.register(mode="execute_all")
    def compute_gradients(self, input_tensor): ...


# 2. Define actor_gen on heterogeneous GPUs
# 2.1 Heterogeneous GPU allocation
gen_rm = RM({"H800": list(range(0, 8))}, {"H20": list(range(8, 32))})  # noqa: PIE808


# 2.2 Hardware affinity mapping
class HeteroActorGen(ActorGenCls):
    @rdist.hw_mapping(hw_affinity={"FrozenLake": "H800", "default": "H20"})
    def generate(self, input_ids: List[int], tag_name: str = "default"):  # noqa: UP006
        return self.model.process(input_ids)


# 3. Define a serverless reward function
class ServerlessRewardWorker(RewardCls):
    @rdist.register_serverless(attribute="reward_proxy", serverless_url="fc://xxx.xxx")
    def compute_rewards(self, traj: list):
        prompt = f"Evaluate the trajectory: {traj}"
        return ray.get(self.reward_proxy(prompt))
