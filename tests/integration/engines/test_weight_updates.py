"""Suspend, load, resume: no token comes from KV of other weights, and each says which weights sampled it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rollart_hpc.errors import WeightsError
from rollart_hpc.types import FinishReason, Span

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize("inbox", ["core", "public", pytest.param("async", marks=pytest.mark.slow)], indirect=True),
    pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning"),  # vLLM, at import
]

NUM_IN_FLIGHT = 16
TOLERANCE = 1e-4


async def update_in_flight(inbox, make_prompt):
    """Generations that begin under policy 0 and end under policy 1: prompts, results, both versions."""
    old = await inbox.install(0)
    prompts = [make_prompt(seed, 40 + 3 * seed) for seed in range(NUM_IN_FLIGHT)]
    # Half of them greedy, where every token is known, half of them sampled.
    futures = inbox.send(*(inbox.request(prompt, 300, temperature=index % 2) for index, prompt in enumerate(prompts)))
    # When this one ends, the others have some fifty tokens.
    await inbox.ask([1], 50)
    assert inbox.engine.num_running == NUM_IN_FLIGHT
    new = await inbox.install(1)
    return prompts, await asyncio.gather(*futures), old, new


def gaps_to_reference(inbox, policy, prompt, response, logprobs, start, end):
    """Largest difference of logprobs to Hugging Face, and whether each token is its most likely one."""
    reference = inbox.policies.logprobs(policy, prompt + response)[len(prompt) - 1 :][start:end]
    tokens = np.array(response[start:end])
    return np.abs(reference[np.arange(len(tokens)), tokens] - logprobs[start:end]).max(), reference.argmax(1) == tokens


async def test_requests_in_flight_continue_as_the_new_policy_would(inbox, make_prompt):
    prompts, results, old, new = await update_in_flight(inbox, make_prompt)
    for index, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        response = np.frombuffer(result.token_ids, "<i4").tolist()
        logprobs = np.frombuffer(result.logprobs, "<f4")
        before, after = result.spans
        assert (before.version, before.start, after.version, after.end) == (old, 0, new, 300)
        assert 0 < before.end == after.start < 300
        for policy, span in ((0, before), (1, after)):
            gap, is_likeliest = gaps_to_reference(inbox, policy, prompt, response, logprobs, span.start, span.end)
            assert gap <= TOLERANCE
            assert is_likeliest.all() or index % 2 == 1


async def test_the_reference_tells_when_kv_of_the_old_policy_is_kept(inbox, make_prompt, monkeypatch):
    keep_kv(inbox.engine, monkeypatch)
    prompts, results, _, _ = await update_in_flight(inbox, make_prompt)
    for prompt, result in zip(prompts, results, strict=True):
        response = np.frombuffer(result.token_ids, "<i4").tolist()
        logprobs = np.frombuffer(result.logprobs, "<f4")
        gap, _ = gaps_to_reference(inbox, 1, prompt, response, logprobs, result.spans[1].start, 300)
        assert gap > 100 * TOLERANCE
    monkeypatch.undo()
    await inbox.install(0)


async def test_a_continuation_equals_a_fresh_request_of_the_new_policy(inbox, make_prompt):
    prompts, results, _, _ = await update_in_flight(inbox, make_prompt)
    prompts, results = prompts[::2], results[::2]
    responses = [np.frombuffer(result.token_ids, "<i4").tolist() for result in results]
    cuts = [result.spans[1].start for result in results]
    fresh = await asyncio.gather(
        *(
            inbox.ask(prompt + response[:cut], 300 - cut, temperature=0)
            for prompt, response, cut in zip(prompts, responses, cuts, strict=True)
        )
    )
    for again, result, response, cut in zip(fresh, results, responses, cuts, strict=True):
        assert np.frombuffer(again.token_ids, "<i4").tolist() == response[cut:]
        gap = np.frombuffer(again.logprobs, "<f4") - np.frombuffer(result.logprobs, "<f4")[cut:]
        assert np.abs(gap).max() <= TOLERANCE


async def test_the_prefix_cache_serves_the_loaded_version_only(inbox, make_prompt):
    prompt = make_prompt(100, 96)
    cached = []
    for policy in (0, 1):
        await inbox.install(policy)
        for _ in range(2):
            result = await inbox.ask(prompt, 20)
            response = np.frombuffer(result.token_ids, "<i4").tolist()
            logprobs = np.frombuffer(result.logprobs, "<f4")
            assert gaps_to_reference(inbox, policy, prompt, response, logprobs, 0, 20)[0] <= TOLERANCE
            cached.append(result.num_cached_tokens)
    assert cached == [0, 64, 0, 64]


async def test_probes_say_which_policy_is_loaded(inbox, make_prompt):
    probe = make_prompt(7, 33)
    for policy in (1, 0):
        await inbox.install(policy)
        reference = inbox.policies.logprobs(policy, probe)[np.arange(32), probe[1:]]
        assert np.abs(np.array(await inbox.engine.probe(probe)) - reference).max() <= TOLERANCE


async def test_loaded_weights_are_copies(inbox, make_prompt):
    await inbox.engine.suspend()
    tensors = inbox.policies.tensors(1)
    await inbox.engine.load(inbox.engine.version + 1, tensors.items())
    for tensor in tensors.values():
        tensor.zero_()
    await inbox.engine.resume()
    probe = make_prompt(8, 20)
    reference = inbox.policies.logprobs(1, probe)[np.arange(19), probe[1:]]
    assert np.abs(np.array(await inbox.engine.probe(probe)) - reference).max() <= TOLERANCE


async def test_an_incomplete_update_is_refused_and_the_old_weights_serve(inbox, make_prompt):
    version = await inbox.install(0)
    tensors = inbox.policies.tensors(1)
    missing = {name: tensor for name, tensor in tensors.items() if "k_proj" not in name}
    misshapen = {name: tensor[:1] for name, tensor in tensors.items()}
    await inbox.engine.suspend()
    for update, complaint in ((missing, "k_proj"), (misshapen, "shape")):
        with pytest.raises(WeightsError, match=complaint):
            await inbox.engine.load(version + 1, update.items())
    await inbox.engine.resume()
    result = await inbox.ask(make_prompt(3, 10), 5)
    assert result.spans == (Span(version, 0, 5),)


async def test_an_abort_after_an_update_keeps_both_spans(inbox):
    old = await inbox.install(0)
    request = inbox.request([1, 2, 3], 400)
    (future,) = inbox.send(request)
    await inbox.ask([1], 10)
    new = await inbox.install(1)
    await inbox.ask([1], 10)
    inbox.engine.abort("inbox", [request.request_id])
    result = await future
    assert result.finish_reason is FinishReason.ABORT
    assert [span.version for span in result.spans] == [old, new]
    assert 10 < result.spans[1].end == len(result.token_ids) // 4 == len(result.logprobs) // 4 < 400


def keep_kv(engine, monkeypatch):
    """Makes the next update swap the weights and nothing else."""

    async def kept(**_):
        return True

    if hasattr(engine, "_llm"):
        monkeypatch.setattr(engine._llm, "reset_prefix_cache", kept)
    else:
        monkeypatch.setattr(engine._commands._stepper, "drop_kv", lambda: None)
