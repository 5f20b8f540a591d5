"""What a run declares of where its work goes."""

import pytest

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.declared_affinity import declared_affinity, declared_serverless
from rollart_hpc.distributed import ActorGenCls, RewardCls, hw_mapping, register, register_serverless
from rollart_hpc.errors import ConfigError
from tests.builders import run_config

HERE = "tests.unit.data_plane.test_declared_affinity"
MAPPING = {"lake": "H800", "default": "H20"}


class Hetero(ActorGenCls):
    @hw_mapping(hw_affinity=MAPPING)
    async def generate(self, input_ids: list[int], tag_name: str = "default") -> list[int]:
        return input_ids


class Unmapped(ActorGenCls):
    @register()
    async def generate(self, input_ids: list[int]) -> list[int]:
        return input_ids


class ServerlessReward(RewardCls):
    @register_serverless(attribute="reward_proxy", serverless_url="https://host/f")
    async def compute_rewards(self, traj: list) -> float:
        return 0.0


def config(*, affinity: dict[str, str] | None = None, **workers: str) -> RunConfig:
    made = run_config(tasks={"lake": {}, "sums": {"reward_url": "http://host/g"}})
    classes = {role: f"{HERE}:{name}" for role, name in workers.items()}
    named = made.workers.model_copy(update=classes)
    return made.model_copy(update={"affinity": affinity or {}, "workers": named})


def declared(**values) -> list[tuple[dict[str, str], str]]:
    return [(dict(one.hardware), one.source) for one in declared_affinity(config(**values))]


def test_a_run_without_affinity_declares_nothing():
    assert declared() == []
    assert declared(actor_gen="Unmapped") == []


def test_the_config_comes_before_the_worker_class():
    of_class = (MAPPING, "hw_affinity.{tag} of Hetero.generate")
    assert declared(actor_gen="Hetero") == [of_class]
    own = {"default": "cpu"}
    assert declared(affinity=own, actor_gen="Hetero") == [(own, "affinity.{tag}"), of_class]


def test_a_reward_is_serverless_by_its_url_or_by_the_worker_class():
    url = {"sums": "tasks.sums.reward_url"}
    assert declared_serverless(config()) == url
    assert declared_serverless(config(reward="ServerlessReward")) == url | {"lake": "ServerlessReward.compute_rewards"}


def test_a_class_that_is_not_there_is_an_error_of_the_config():
    with pytest.raises(ConfigError, match="Absent"):
        declared_affinity(config(actor_gen="Absent"))
    with pytest.raises(ConfigError, match="Absent"):
        declared_serverless(config(reward="Absent"))
