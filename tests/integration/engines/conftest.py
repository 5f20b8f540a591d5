"""Two tiny policies, their Hugging Face reference, and an inbox at an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.engine import Answer, Engine
from rollart_hpc.types import GenerateRequest, GenerateResult

VOCAB_SIZE = 64
MAX_CONTEXT = 512


class Policies:
    """Policy 0 and policy 1: what they are on disk, and what they say according to Hugging Face."""

    def __init__(self, folder: Path, *, hidden_size: int = 64) -> None:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        # More threads than free cores slow the reference down by far.
        torch.set_num_threads(1)
        self.paths = [folder / "policy-0", folder / "policy-1"]
        self._models: list[Any] = []
        for seed, path in enumerate(self.paths):
            torch.manual_seed(seed)
            shape = Qwen3Config(
                vocab_size=VOCAB_SIZE,
                hidden_size=hidden_size,
                intermediate_size=3 * hidden_size,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=32,
                max_position_embeddings=4096,
                tie_word_embeddings=True,
                initializer_range=0.1,
            )
            model = Qwen3ForCausalLM(shape).to(torch.float32).eval()
            model.save_pretrained(path)
            self._models.append(model)

    def tensors(self, policy: int) -> dict[str, Any]:
        from safetensors.torch import load_file

        return load_file(self.paths[policy] / "model.safetensors")

    def logprobs(self, policy: int, token_ids: Sequence[int], temperature: float = 1.0) -> np.ndarray:
        """[len(token_ids) - 1, vocabulary] for the tokens 1.. of a sequence."""
        import torch

        with torch.no_grad():
            logits = self._models[policy](torch.tensor([list(token_ids)])).logits[0, :-1].float()
        return (logits / temperature).log_softmax(-1).numpy()

    def config(self, policy: int = 0, **generation: Any) -> RunConfig:
        return RunConfig.model_validate(
            {
                "run": {"name": "engines", "steps": 1},
                "model": {"path": self.paths[policy], "max_context": MAX_CONTEXT},
                "generation": {"kv_cache_mb": 64, **generation},
                "rollout": {"groups_per_step": 1},
                "pools": {"here": {"hardware": "cpu", "actor_train": 1, "actor_gen": 1, "environment": 1, "reward": 1}},
                "tasks": {"task": {"environment": "some:environment", "reward": "some:reward"}},
            }
        )


class Inbox:
    """Sends requests to an engine and waits for their answers."""

    def __init__(self, engine: Engine, policies: Policies) -> None:
        self.engine, self.policies = engine, policies
        self.failures: list[BaseException] = []
        self.answers: list[Answer] = []
        self._futures: dict[tuple[str, int], asyncio.Future[GenerateResult]] = {}
        self._next_id = 0

    def deliver(self, answers: Sequence[Answer]) -> None:
        self.answers += answers
        for inbox, result in answers:
            future = self._futures[inbox, result.request_id]
            if not future.done():
                future.set_result(result)

    def request(self, token_ids: Sequence[int], max_tokens: int, **fields: Any) -> GenerateRequest:
        self._next_id += 1
        return GenerateRequest(self._next_id, np.asarray(token_ids, "<i4").tobytes(), max_tokens, **fields)

    def send(self, *requests: GenerateRequest, inbox: str = "inbox") -> list[asyncio.Future[GenerateResult]]:
        for request in requests:
            self._futures.setdefault((inbox, request.request_id), asyncio.get_running_loop().create_future())
        self.engine.add(inbox, requests)
        return [self._futures[inbox, request.request_id] for request in requests]

    async def ask(self, token_ids: Sequence[int], max_tokens: int, **fields: Any) -> GenerateResult:
        (future,) = self.send(self.request(token_ids, max_tokens, **fields))
        return await future

    async def install(self, policy: int) -> int:
        """Updates the engine to a policy, under a new version."""
        await self.engine.suspend()
        await self.engine.load(self.engine.version + 1, self.policies.tensors(policy).items())
        await self.engine.resume()
        return self.engine.version


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="session")
def make_prompt() -> Callable[[int, int], list[int]]:
    def make(seed: int, length: int) -> list[int]:
        return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()

    return make


@pytest.fixture(scope="session")
def start_inbox(policies: Policies) -> Callable[..., Awaitable[Inbox]]:
    """``await start_inbox("core", wide_policies, policy=1, seed=2, max_concurrent=8)``."""

    async def start(
        kind: str, policies: Policies = policies, *, policy: int = 0, seed: int = 1, **generation: Any
    ) -> Inbox:
        from rollart_hpc.data_plane.backends.echo import EchoEngine
        from rollart_hpc.data_plane.backends.vllm.async_engine import VllmAsyncEngine
        from rollart_hpc.data_plane.backends.vllm.thread_engine import VllmThreadEngine

        config = policies.config(policy, **generation)
        match kind:
            case "echo":
                engine: Engine = EchoEngine(config)
            case "emulated":
                engine = emulated_engine()
            case "async":
                engine = VllmAsyncEngine(config, seed=seed)
            case _:
                engine = VllmThreadEngine(config, seed=seed, public_api=kind == "public")
        inbox = Inbox(engine, policies)
        await engine.start(inbox.deliver, inbox.failures.append)
        return inbox

    return start


def emulated_engine() -> Engine:
    """Of one H800, ten thousand times as fast, for the tiny policies' vocabulary and context."""
    from rollart_hpc.simulate.clock import Clock
    from rollart_hpc.simulate.engine import EmulatedEngine
    from tests.unit.simulate.fake_clock import engine_cost

    cost = engine_cost()
    return EmulatedEngine(
        clock=Clock(10_000),
        cost=cost,
        response_tokens=lambda _: 2 * MAX_CONTEXT,
        tokens_per_id=1,
        max_context=MAX_CONTEXT,
        vocab_size=VOCAB_SIZE,
        kv_tokens=cost.kv_tokens,
    )


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def inbox(request: pytest.FixtureRequest, start_inbox: Callable[..., Awaitable[Inbox]]) -> AsyncIterator[Inbox]:
    """One engine of a kind for all tests; two in one process at the same time break each other's end."""
    inbox = await start_inbox(request.param)
    yield inbox
    await inbox.engine.close()
    assert inbox.failures == []
