"""Worker classes of a user's own, one for each role; what they do is in their logs."""

import logging
from typing import Any

import rollart_hpc.distributed as rdist
from rollart_hpc.distributed.worker import ActorGenCls, ActorTrainCls, EnvironmentCls, RewardCls

_log = logging.getLogger(__name__)


class Train(ActorTrainCls):
    def train_step(self, batch):
        _log.info("train step %d of %d sequences", batch.step, len(batch.lengths))
        return super().train_step(batch)


class Gen(ActorGenCls):
    @rdist.hw_mapping({"default": "H20"})
    def generate(self, input_ids: list[int], tag_name: str = "default") -> list[int]:
        return self.model.process(input_ids, tag=tag_name)


class Play(EnvironmentCls):
    async def setup(self) -> None:
        await super().setup()
        _log.info("plays")


class Reward(RewardCls):
    def compute_rewards(self, traj: list[dict[str, Any]]) -> dict[str, object]:
        _log.info("scores an episode of %d turns", len(traj))
        reward = sum(turn["reward"] for turn in traj)
        return {"reward": reward, "success": reward == 1}
