"""A generation worker's own methods generate with its engine, beside the requests of the bus."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.echo import EchoEngine
from rollart_hpc.data_plane.engine import Answer
from rollart_hpc.data_plane.generation_model import OWN_INBOX, GenerationModel
from rollart_hpc.data_plane.plain_methods import run_in_thread
from rollart_hpc.errors import ConfigError, EngineError
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult
from rollart_hpc.warm_start.tokenizer import save_tokenizer
from tests.builders import run_config


class Watched(EchoEngine):
    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.added: list[GenerateRequest] = []

    def add(self, inbox: str, requests: Sequence[GenerateRequest]) -> None:
        assert inbox == OWN_INBOX
        self.added += requests
        super().add(inbox, requests)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    save_tokenizer(tmp_path, max_length=64)
    config = run_config(tasks={"short": {"max_new_tokens": 4}, "long": {"max_new_tokens": 6}})
    return config.model_copy(update={"model": config.model.model_copy(update={"path": tmp_path})})


@pytest.fixture
async def engine(config: RunConfig) -> AsyncIterator[Watched]:
    yield Watched(config)


@pytest.fixture
async def model(config: RunConfig, engine: Watched) -> GenerationModel:
    model = GenerationModel(config, lambda: engine)

    def deliver(answers: Sequence[Answer]) -> None:
        for _, result in answers:
            model.deliver(result)

    await engine.start(deliver, lambda error: None)
    return model


async def test_a_response_is_sampled_as_the_run_s_are_unless_it_is_told_otherwise(
    model: GenerationModel, engine: Watched
):
    result = await model.generate([7, 8])
    assert np.frombuffer(result.token_ids, np.int32).tolist() == [7, 8, 7, 8, 7, 8]
    await model.generate([7], max_tokens=2, temperature=0, top_p=0.5, stop_token_ids=[3], seed=1, tag="short")
    first, second = engine.added
    assert (first.max_tokens, first.temperature, first.top_p, first.tag, first.seed) == (6, 1.0, 1.0, "default", None)
    assert first.stop_token_ids
    assert second == GenerateRequest(1, b"\x07\0\0\0", 2, 0, 0.5, (3,), "short", 1)


async def test_a_plain_method_gets_the_tokens(model: GenerationModel):
    with ThreadPoolExecutor(1) as threads:
        assert await run_in_thread(threads, lambda: model.process([1, 2], max_tokens=3)) == [1, 2, 1]


async def test_requests_do_not_get_each_other_s_answers_and_wait_while_the_engine_is_suspended(
    model: GenerationModel, engine: Watched
):
    await model.generate([1])
    await engine.suspend()
    asking = [asyncio.create_task(model.generate([number], max_tokens=1)) for number in range(1, 20)]
    while engine.num_running < 19:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not any(one.done() for one in asking)
    await engine.resume()
    answers = await asyncio.gather(*asking)
    assert [np.frombuffer(one.token_ids, np.int32).tolist() for one in answers] == [[n] for n in range(1, 20)]


async def test_a_cancelled_request_is_aborted_and_its_answer_ignored(model: GenerationModel, engine: Watched):
    await model.generate([1])
    await engine.suspend()
    asking = asyncio.create_task(model.generate([2]))
    while not engine.num_running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    assert engine.num_running == 0
    model.deliver(GenerateResult(1, b"", b"", (), FinishReason.ABORT))
    model.deliver(GenerateResult(99, b"", b"", (), FinishReason.ABORT))


@pytest.mark.parametrize(
    "prompt", [[1.5], "text", [[1]], [[1], [2, 3]], [-1], [2**31], [2**70], [None], [True]], ids=repr
)
async def test_what_is_no_prompt_is_an_error_of_the_request(model: GenerationModel, prompt: list[int]):
    with pytest.raises(EngineError, match=r"the prompt is .*; expected a list of token ids"):
        await model.generate(prompt)
    with pytest.raises(EngineError, match="the prompt is empty"):
        await model.generate([])
    with pytest.raises(EngineError, match=r"the prompt has 5000 tokens and model.max_context is \d+"):
        await model.generate([1] * 5000)
    await model.generate([1])


async def test_an_engine_that_is_lost_is_an_error_of_the_request(model: GenerationModel, engine: Watched):
    await model.generate([1])
    await engine.suspend()
    asking = asyncio.create_task(model.generate([2]))
    while not engine.num_running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineError, match="the engine was closed"):
        await asking


async def test_a_model_without_a_tokenizer_says_so(model: GenerationModel, tmp_path: Path):
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json: cannot be read"):
        await model.generate([1])
    assert (await model.generate([1], stop_token_ids=[])).finish_reason is FinishReason.LENGTH
