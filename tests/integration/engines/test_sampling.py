"""Tokens and logprobs of the vLLM engines against Hugging Face."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rollart_hpc.types import FinishReason

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize("inbox", ["core", "public", pytest.param("async", marks=pytest.mark.slow)], indirect=True),
    pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning"),  # vLLM, at import
]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
async def test_logprobs_are_those_of_the_sampling_distribution(inbox, make_prompt, temperature):
    await inbox.install(0)
    prompts = [make_prompt(seed, 20 + seed) for seed in range(8)]
    results = await asyncio.gather(*(inbox.ask(prompt, 64, temperature=temperature) for prompt in prompts))
    for prompt, result in zip(prompts, results, strict=True):
        response = np.frombuffer(result.token_ids, "<i4")
        reference = inbox.policies.logprobs(0, prompt + response.tolist(), temperature)[len(prompt) - 1 :]
        gap = reference[np.arange(64), response] - np.frombuffer(result.logprobs, "<f4")
        assert np.abs(gap).max() <= 1e-4


async def test_a_stop_token_ends_the_response_and_is_part_of_it(inbox):
    result = await inbox.ask([1, 2, 3], 50, stop_token_ids=tuple(range(64)))
    assert (result.finish_reason, len(result.token_ids)) == (FinishReason.STOP, 4)


async def test_a_seed_makes_a_request_deterministic_in_any_company(inbox, make_prompt):
    prompt = make_prompt(1, 30)
    alone = await inbox.ask(prompt, 40, seed=7)
    others = [inbox.request(make_prompt(seed, 25), 60) for seed in range(10)]
    inbox.send(*others)
    in_company, other_seed = await asyncio.gather(inbox.ask(prompt, 40, seed=7), inbox.ask(prompt, 40, seed=8))
    assert in_company.token_ids == alone.token_ids
    assert other_seed.token_ids != alone.token_ids


async def test_requests_without_a_seed_differ(inbox, make_prompt):
    prompt = make_prompt(2, 30)
    results = await asyncio.gather(*(inbox.ask(prompt, 20) for _ in range(8)))
    assert len({result.token_ids for result in results}) == 8


async def test_an_abort_answers_at_once_with_the_tokens_so_far(inbox):
    request = inbox.request([1, 2, 3], 480)
    (future,) = inbox.send(request)
    await inbox.ask([1], 20)
    inbox.engine.abort("inbox", [request.request_id])
    result = await future
    assert (result.finish_reason, result.error) == (FinishReason.ABORT, "")
    assert 10 < len(result.token_ids) // 4 < 480
    assert len(result.token_ids) == len(result.logprobs)
    assert result.spans[-1].end == len(result.token_ids) // 4


async def test_a_running_request_can_be_aborted_while_suspended(inbox):
    request = inbox.request([1, 2, 3], 480)
    (future,) = inbox.send(request)
    await inbox.ask([1], 20)
    await inbox.engine.suspend()
    inbox.engine.abort("inbox", [request.request_id])
    result = await future
    await inbox.engine.resume()
    assert (result.finish_reason, len(result.token_ids) > 40) == (FinishReason.ABORT, True)


async def test_a_caller_that_gives_up_does_not_hurt_the_engine(inbox):
    for work in (inbox.engine.probe([1, 2, 3]), inbox.engine.resume()):
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        task.cancel()
    assert (await inbox.ask([1, 2], 4)).error == ""
    assert len(await inbox.engine.probe([1, 2, 3])) == 2


async def test_an_abort_right_after_its_request_ends_it(inbox):
    request = inbox.request([1, 2, 3], 480)
    (future,) = inbox.send(request)
    inbox.engine.abort("inbox", [request.request_id])
    assert (await future).finish_reason is FinishReason.ABORT
    assert inbox.engine.num_running == 0


async def test_a_token_outside_the_vocabulary_costs_its_own_request_only(inbox):
    good, bad = inbox.send(inbox.request([1, 2], 30), inbox.request([1, 64], 30))
    assert "vocabulary" in (await bad).error
    assert (await good).error == ""
