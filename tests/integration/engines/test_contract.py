"""What every engine promises, whether it has a model or not."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rollart_hpc.errors import EngineError
from rollart_hpc.types import FinishReason, GenerateRequest, Span, TagUsage

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.parametrize(
        "inbox", ["core", "public", pytest.param("async", marks=pytest.mark.slow), "echo", "emulated"], indirect=True
    ),
    pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning"),  # vLLM, at import
]


async def test_a_result_has_one_logprob_per_token_and_its_version(inbox):
    result = await inbox.ask([1, 2, 3], 8)
    assert len(result.token_ids) == len(result.logprobs) == 4 * 8
    assert all(np.frombuffer(result.logprobs, "<f4") < 0)
    assert result.spans == (Span(inbox.engine.version, 0, 8),)
    assert (result.finish_reason, result.error) == (FinishReason.LENGTH, "")
    assert inbox.engine.num_running == 0


async def test_a_prompt_that_fills_the_context_is_answered_with_context(inbox):
    result = await inbox.ask([1] * 512, 8)
    assert (result.finish_reason, result.token_ids, result.error) == (FinishReason.CONTEXT, b"", "")


async def test_max_tokens_is_cut_to_the_room_that_is_left(inbox):
    result = await inbox.ask([1] * 508, 100)
    assert (result.finish_reason, len(result.token_ids)) == (FinishReason.LENGTH, 4 * 4)


@pytest.mark.parametrize(
    ("token_ids", "fields", "complaint"),
    [
        pytest.param([], {}, "empty", id="empty prompt"),
        pytest.param([-1], {}, "vocabulary", id="negative token id"),
        pytest.param([1], {"max_tokens": 0}, "max_tokens", id="nothing to generate"),
        pytest.param([1], {"temperature": float("nan")}, "temperature", id="temperature is not a number"),
        pytest.param([1], {"top_p": 0.0}, "top_p", id="top_p of zero"),
        pytest.param([1], {"seed": 2**64}, "seed", id="seed too large"),
    ],
)
async def test_a_bad_request_gets_an_error_and_the_next_one_is_served(inbox, token_ids, fields, complaint):
    refused = await inbox.ask(token_ids, **{"max_tokens": 4, **fields})
    assert complaint in refused.error
    assert (await inbox.ask([1, 2], 4)).error == ""


async def test_token_ids_that_are_not_whole_numbers_get_an_error(inbox):
    (future,) = inbox.send(GenerateRequest(10**6, b"\x01\x00\x00", 4))
    assert "multiple of 4" in (await future).error


async def test_a_request_that_is_added_twice_is_answered_once(inbox):
    twice = inbox.request([1, 2], 4)
    (future, _) = inbox.send(twice, twice)
    inbox.send(twice)
    await future
    await inbox.ask([1], 4)
    assert [result.request_id for _, result in inbox.answers].count(twice.request_id) == 1


async def test_request_ids_of_two_inboxes_do_not_meet(inbox):
    request = inbox.request([1, 2], 4)
    (here,), (there,) = inbox.send(request), inbox.send(request, inbox="other")
    await asyncio.gather(here, there)
    assert {name for name, result in inbox.answers if result.request_id == request.request_id} == {"inbox", "other"}


async def test_requests_wait_while_suspended_and_can_be_aborted(inbox):
    await inbox.engine.suspend()
    kept, dropped = inbox.send(inbox.request([1, 2], 4), dropped_request := inbox.request([3, 4], 4))
    inbox.engine.abort("inbox", [dropped_request.request_id])
    assert (await dropped).finish_reason is FinishReason.ABORT
    await inbox.engine.load(inbox.engine.version + 1, inbox.policies.tensors(0).items())
    assert not kept.done()
    await inbox.engine.resume()
    assert (await kept).spans == (Span(inbox.engine.version, 0, 4),)


async def test_unknown_aborts_are_ignored(inbox):
    inbox.engine.abort("inbox", [10**9])
    inbox.engine.abort("nobody", [1])
    assert (await inbox.ask([1, 2], 4)).error == ""


async def test_weights_are_loaded_and_probed_in_the_states_that_allow_it(inbox):
    with pytest.raises(EngineError, match="suspend"):
        await inbox.engine.load(99, inbox.policies.tensors(0).items())
    await inbox.engine.suspend()
    with pytest.raises(EngineError, match="resume"):
        await inbox.engine.probe([1, 2, 3])
    await inbox.engine.resume()
    assert len(await inbox.engine.probe([1, 2, 3])) == 2


async def test_usage_is_counted_by_tag(inbox):
    await asyncio.gather(*(inbox.ask([1, 2, 3], 4, tag="counted") for _ in range(3)))
    usage = inbox.engine.usage()["counted"]
    assert (usage.num_requests, usage.num_prompt_tokens, usage.num_new_tokens) == (3, 9, 12)


async def test_a_request_that_is_aborted_before_its_first_token_counts_for_nothing(inbox):
    await inbox.engine.suspend()
    (waiting,) = inbox.send(request := inbox.request([1, 2], 4, tag="never begun"))
    inbox.engine.abort("inbox", [request.request_id])
    await waiting
    await inbox.engine.resume()
    assert inbox.engine.usage().get("never begun", TagUsage()) == TagUsage()
