"""What engines say that each tag took of their time: shares of it, without waiting and without suspensions."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from types import SimpleNamespace

import pytest

from rollart_hpc.data_plane.backends.vllm import command_loop

STEPPED = pytest.mark.parametrize("inbox", ["core", "public"], indirect=True)
ALL = pytest.mark.parametrize("inbox", ["core", "public", pytest.param("async", marks=pytest.mark.slow)], indirect=True)
pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning"),  # vLLM, at import
]

NUM_IN_FLIGHT = 16


def start_batch(inbox, make_prompt, tag, *, prompt_tokens=30, max_tokens=40):
    prompts = [make_prompt(seed, prompt_tokens) for seed in range(NUM_IN_FLIGHT)]
    return inbox.send(*(inbox.request(prompt, max_tokens, tag=tag) for prompt in prompts))


def shares_s(inbox) -> float:
    return sum(tag.prefill_s + tag.decode_s + tag.recompute_s for tag in inbox.engine.usage().values())


@pytest.fixture
def count_steps(inbox, monkeypatch):
    """From its call on each step takes a second; its result is called for their number.

    The first one gives no token, like those that take only a part of a prompt.
    """

    def begin():
        ticks, num_steps = count(), count()
        monkeypatch.setattr(command_loop, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
        stepper = inbox.engine._commands._stepper
        step = stepper.step
        monkeypatch.setattr(stepper, "step", lambda: step() if next(num_steps) else iter(()))
        return lambda: next(num_steps)

    return begin


@STEPPED
async def test_the_shares_of_all_tags_are_the_time_that_the_steps_took(inbox, make_prompt, count_steps):
    before, num_steps = shares_s(inbox), count_steps()
    short, long = start_batch(inbox, make_prompt, "short"), start_batch(inbox, make_prompt, "long", prompt_tokens=400)
    (dropped,) = inbox.send(request := inbox.request([1], 300, tag="dropped"))
    await inbox.ask([2], 10)
    await inbox.install(0)
    await asyncio.gather(*short, *long)
    inbox.engine.abort("inbox", [request.request_id])
    await dropped
    assert shares_s(inbox) - before == pytest.approx(num_steps())


@STEPPED
async def test_only_the_first_step_under_new_weights_is_computed_again(inbox, count_steps):
    num_steps = count_steps()
    (future,) = inbox.send(inbox.request([1, 2], 60, tag="one update"))
    await inbox.ask([3], 10, tag="beside")
    await inbox.install(0)
    await future
    usage = inbox.engine.usage()
    one, beside = usage["one update"], usage["beside"]
    assert one.recompute_s == 1.0
    rest = num_steps() - one.recompute_s - beside.prefill_s - beside.decode_s
    assert one.prefill_s + one.decode_s == pytest.approx(rest)


@ALL
async def test_requests_of_one_batch_share_its_time_and_do_not_multiply_it(inbox, make_prompt):
    before, began = shares_s(inbox), time.monotonic()
    await asyncio.gather(*start_batch(inbox, make_prompt, "batched"))
    assert 0 < shares_s(inbox) - before <= time.monotonic() - began
    usage = inbox.engine.usage()["batched"]
    # One or two steps with the prompts, 39 without.
    assert 0 < usage.prefill_s < usage.decode_s
    assert usage.recompute_s == 0


@ALL
async def test_a_suspended_engine_adds_nothing(inbox, make_prompt):
    before, began = shares_s(inbox), time.monotonic()
    futures = start_batch(inbox, make_prompt, "held")
    await inbox.ask([1], 10)
    await inbox.engine.suspend()
    suspended = time.monotonic()
    (waiting,) = inbox.send(inbox.request([1, 2], 4, tag="held"))
    for _ in range(20):
        await inbox.engine.load(inbox.engine.version + 1, inbox.policies.tensors(0).items())
    suspended_s = time.monotonic() - suspended
    await inbox.engine.resume()
    await asyncio.gather(*futures, waiting)
    assert shares_s(inbox) - before <= time.monotonic() - began - suspended_s


@ALL
async def test_what_is_computed_again_under_new_weights_is_neither_prefill_nor_decode(inbox, make_prompt):
    futures = start_batch(inbox, make_prompt, "updated", prompt_tokens=400)
    await inbox.ask([1], 10)
    assert inbox.engine.num_running == NUM_IN_FLIGHT
    await inbox.engine.suspend()
    (waiting,) = inbox.send(inbox.request([1, 2], 4, tag="not begun"))
    await inbox.engine.load(inbox.engine.version + 1, inbox.policies.tensors(0).items())
    await inbox.engine.resume()
    await asyncio.gather(*futures, waiting)
    usage = inbox.engine.usage()
    assert usage["updated"].recompute_s > 0
    assert usage["updated"].num_prompt_tokens == 400 * NUM_IN_FLIGHT
    assert usage["not begun"].recompute_s == 0 < usage["not begun"].prefill_s


@ALL
async def test_cached_tokens_are_those_of_the_first_prefill(inbox, make_prompt):
    prompt = make_prompt(77, 100)
    (future,) = inbox.send(inbox.request(prompt, 60, tag="once"))
    await inbox.ask([1], 10)
    await inbox.install(0)
    await future
    await inbox.ask(prompt, 4, tag="again")
    usage = inbox.engine.usage()
    # Its own KV is dropped at the update; the second request finds what it computed again.
    assert (usage["once"].num_cached_tokens, usage["again"].num_cached_tokens) == (0, 96)
