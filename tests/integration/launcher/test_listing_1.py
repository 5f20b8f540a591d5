"""The paper's Listing 1 on workers of this machine: real tokens, a real call of HTTP, a real model."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

import rollart_hpc.distributed as rdist
from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.model_files import read_tokenizer
from rollart_hpc.types import Role
from tests.integration.launcher import listing_1

TRAJECTORY = [{"observation": "1 + 1", "action": "2"}]


class Gradients(listing_1.MyActorTrain):
    """The listing leaves the method's body open; this one is a backward pass over the model's last layer."""

    def compute_gradients(self, input_tensor):
        weight = next(parameter for name, parameter in self.model.named_parameters() if "final_layernorm" in name)
        (gradient,) = torch.autograd.grad((torch.from_numpy(input_tensor.copy()) * weight).sum(), [weight])
        return gradient


@pytest.fixture
async def asked() -> AsyncIterator[tuple[str, list[object]]]:
    """A serverless function's URL, and what it was asked."""
    bodies: list[object] = []

    async def score(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"reward": 0.5})

    app = web.Application()
    app.router.add_post("/score", score)
    async with TestServer(app) as server:
        yield str(server.make_url("/score")), bodies


def config(model: Path, reward_url: str) -> RunConfig:
    return parse_config(
        {
            "run": {"name": "listing", "steps": 1},
            "model": {"path": str(model), "max_context": 256},
            "generation": {"kv_cache_mb": 64},
            "rollout": {"groups_per_step": 1},
            "pools": {"all": {"hardware": "cpu", "actor_train": 1, "actor_gen": 1, "environment": 1, "reward": 1}},
            "tasks": {
                "arithmetic": {
                    "environment": "rollart_hpc.envs.arithmetic:Arithmetic",
                    "reward": "rollart_hpc.reward_functions.arithmetic:score",
                    "max_new_tokens": 8,
                }
            },
            "serverless": {"fc://xxx.xxx": reward_url},
        }
    )


def test_the_listing_s_own_devices_are_32():
    assert {name: len(ids) for name, ids in listing_1.gen_rm.classes.items()} == {"H800": 8, "H20": 24}


@pytest.mark.slow
async def test_the_listing_runs_on_workers_of_this_machine(
    arithmetic_model: Path, asked: tuple[str, list[object]], tmp_path: Path
):
    reward_url, bodies = asked
    tokenizer = read_tokenizer(arithmetic_model)
    prompt = tokenizer.encode("1 + 1", add_special_tokens=False).ids
    async with rdist.deploy(config(arithmetic_model, reward_url), directory=tmp_path) as deployment:
        devices = rdist.ResourceManager({"H800": [0]}, {"H20": [1]})
        gen, train, reward = await asyncio.gather(
            deployment.cluster(listing_1.HeteroActorGen, devices),
            deployment.cluster(Gradients, rdist.ResourceManager({"H800": [2]})),
            deployment.cluster(listing_1.ServerlessRewardWorker, rdist.ResourceManager({"cpu": [3]})),
        )
        hardware = {member.hardware: member.member_id for member in gen.members()}

        async def served() -> dict[str, int]:
            usage = {name: await gen.call_one(worker, gen.worker_class.usage) for name, worker in hardware.items()}
            return {name: sum(one.num_requests for one in tags.values()) for name, tags in usage.items()}

        (tokens,) = await gen.generate(prompt, tag_name="FrozenLake")
        assert 1 <= len(tokens) <= 8
        assert all(0 <= token < tokenizer.get_vocab_size() for token in tokens)
        assert await served() == {"H800": 1, "H20": 0}
        await asyncio.gather(gen.generate(prompt, tag_name="arithmetic"), gen.generate(prompt))
        assert await served() == {"H800": 1, "H20": 2}

        assert await reward.compute_rewards(TRAJECTORY) == [{"reward": 0.5}]
        assert bodies == [f"Evaluate the trajectory: {TRAJECTORY}"]

        values = np.arange(64, dtype=np.float32)
        (gradient,) = await train.compute_gradients(values)
        np.testing.assert_array_equal(gradient, values)
        assert {role: len(deployment._view.of_role(role)) for role in Role} == {  # pyright: ignore
            Role.ACTOR_TRAIN: 1, Role.ACTOR_GEN: 2, Role.ENVIRONMENT: 0, Role.REWARD: 1,
        }  # fmt: skip
