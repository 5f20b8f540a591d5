"""The emulated engine's time and tokens; what it promises as an engine is in the contract test of all engines."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.errors import ConfigError, EngineError
from rollart_hpc.simulate import policy
from rollart_hpc.types import FinishReason, Span
from tests.unit.simulate.fake_clock import Emulated


async def test_equal_requests_take_their_prefills_one_by_one_and_then_decode_together():
    emulated = await Emulated(response_tokens=lambda _: 500).start()
    ids = [emulated.ask_fresh(1000) for _ in range(16)]
    emulated.run_out()
    cost = emulated.cost
    expected = 16 * cost.prefill_s(1000) + sum(cost.decode_step_s(16, 16 * (1000 + step)) for step in range(500))
    assert [emulated.ended_s[one] for one in ids] == pytest.approx([expected] * 16, rel=1e-3)
    assert emulated.engine.busy_s == pytest.approx(emulated.ended_s[ids[0]])


async def test_a_prefill_lets_decoding_wait_and_adds_to_every_step_after_it():
    emulated = await Emulated(response_tokens=int).start()
    first = emulated.ask_fresh(100, tag="400")
    emulated.clock.advance(1.0)
    second = emulated.ask_fresh(20_000, tag="4000")
    emulated.run_out()
    cost = emulated.cost
    alone_s = 1.0 - cost.prefill_s(100)
    steps_alone = cost.decoded_steps(1, 100, alone_s)
    together_s = cost.decode_s(2, 20_100 + steps_alone, 400 - steps_alone)
    assert emulated.ended_s[first] == pytest.approx(1.0 + cost.prefill_s(20_000) + together_s)
    steps_together = 400 - steps_alone
    rest_s = cost.decode_s(1, 20_000 + steps_together, 4000 - steps_together)
    assert emulated.ended_s[second] == pytest.approx(emulated.ended_s[first] + rest_s)


async def test_a_late_event_loop_delays_answers_and_not_the_work():
    ended: list[list[float]] = []
    for late_s in (0.0, 0.3):
        emulated = await Emulated(response_tokens=int).start()
        ids = [emulated.ask_fresh(100, tag=str(tokens)) for tokens in (50, 100, 150, 1000)]
        emulated.clock.advance(100.0, late_s=late_s)
        ended.append([emulated.ended_s[one] for one in ids])
        busy_s = emulated.engine.busy_s
    in_time, late = ended
    assert all(0 <= after - before <= 0.6 + 1e-6 for before, after in zip(in_time, late, strict=True))
    assert busy_s == pytest.approx(in_time[-1])


async def test_a_suspension_adds_nothing_but_its_own_length():
    emulated = await Emulated().start()
    undisturbed = await Emulated().start()
    for one in (emulated, undisturbed):
        one.ask_fresh(1000)
    emulated.clock.advance(0.2)
    await emulated.engine.suspend()
    emulated.clock.advance(50.0)
    assert emulated.clock.num_timers == 0
    await emulated.engine.resume()
    for one in (emulated, undisturbed):
        one.run_out()
    assert emulated.ended_s[0] == pytest.approx(undisturbed.ended_s[0] + 50.0)
    assert emulated.engine.busy_s == pytest.approx(undisturbed.engine.busy_s)
    assert emulated.engine.usage()["default"].decode_s == pytest.approx(undisturbed.engine.usage()["default"].decode_s)


async def test_an_abort_answers_with_the_tokens_by_then_and_leaves_their_kv():
    emulated = await Emulated(response_tokens=lambda _: 1000).start()
    prompts = [[start, *range(99)] for start in range(200, 204)]
    ids = [emulated.ask(prompt) for prompt in prompts]
    emulated.clock.advance(2.0)
    emulated.engine.abort("inbox", [ids[1]])
    emulated.clock.advance(0.0)
    cost = emulated.cost
    num_tokens = int(cost.decoded_steps(4, 400, 2.0 - 4 * cost.prefill_s(100)))
    result = emulated.results[ids[1]]
    assert (result.finish_reason, emulated.num_tokens(ids[1])) == (FinishReason.ABORT, num_tokens)
    assert result.spans == (Span(0, 0, num_tokens),)
    again = emulated.ask([*prompts[1], *np.frombuffer(result.token_ids, "<i4").tolist(), 1])
    emulated.run_out()
    assert [emulated.num_tokens(ids[index]) for index in (0, 2, 3)] == [1000] * 3
    assert emulated.results[again].num_cached_tokens == 100 + num_tokens


async def test_an_aborted_prefill_makes_room_for_the_next_one():
    emulated = await Emulated().start()
    dropped, kept = emulated.ask_fresh(30_000), emulated.ask_fresh(100)
    emulated.clock.advance(0.1)
    emulated.engine.abort("inbox", [dropped])
    emulated.run_out()
    assert emulated.num_tokens(dropped) == 0
    cost = emulated.cost
    assert emulated.ended_s[kept] == pytest.approx(0.1 + cost.prefill_s(100) + cost.decode_s(1, 100, 100))
    assert emulated.engine.busy_s == pytest.approx(emulated.ended_s[kept])


async def test_after_a_weight_update_a_running_request_has_both_versions_and_computes_its_context_again():
    emulated = await Emulated(response_tokens=lambda _: 300).start()
    one = emulated.ask_fresh(20_000)
    cost = emulated.cost
    emulated.clock.advance(cost.prefill_s(20_000) + cost.decode_s(1, 20_000, 120.5))
    await emulated.install(7, after_s=10.0)
    emulated.run_out()
    result = emulated.results[one]
    assert result.spans == (Span(0, 0, 120), Span(7, 120, 300))
    # Half a step was thrown away.
    again_s = cost.prefill_s(20_120) + cost.decode_s(1, 20_000, 0.5)
    undisturbed_s = cost.prefill_s(20_000) + cost.decode_s(1, 20_000, 300)
    assert emulated.ended_s[one] == pytest.approx(undisturbed_s + again_s + 10.0)
    assert emulated.engine.usage()["default"].recompute_s == pytest.approx(cost.prefill_s(20_120))
    token_ids, logprobs = np.frombuffer(result.token_ids, "<i4"), np.frombuffer(result.logprobs, "<f4")
    assert logprobs[:120].tolist() == policy.logprobs(token_ids[:120], 0).tolist()
    assert logprobs[120:].tolist() == policy.logprobs(token_ids[120:], 7).tolist()


async def test_the_next_turn_and_the_members_of_a_group_compute_only_what_is_new():
    emulated = await Emulated(response_tokens=lambda _: 50).start()
    prompt = list(range(900))
    first, second = emulated.ask(prompt), emulated.ask(prompt)
    emulated.run_out()
    context = prompt + np.frombuffer(emulated.results[first].token_ids, "<i4").tolist()
    busy_s = emulated.engine.busy_s
    third = emulated.ask([*context, 1, 2, 3])
    emulated.run_out()
    assert [emulated.results[one].num_cached_tokens for one in (first, second, third)] == [0, 899, 950]
    cost = emulated.cost
    assert emulated.engine.busy_s - busy_s == pytest.approx(cost.prefill_s(3) + cost.decode_s(1, 953, 50))
    await emulated.install(1)
    fourth, fifth = emulated.ask([*context, 1, 2, 3]), emulated.ask([*context, 1, 2, 3])
    emulated.clock.advance(0.2)
    await emulated.install(2)
    emulated.run_out()
    assert [emulated.results[one].num_cached_tokens for one in (fourth, fifth)] == [0, 952]
    assert [len(emulated.results[one].spans) for one in (fourth, fifth)] == [2, 2]


async def test_after_a_weight_update_those_that_run_come_before_those_that_wait():
    emulated = await Emulated(response_tokens=lambda _: 300, kv_tokens=10_000, max_context=6000).start()
    running = emulated.ask_fresh(5000)
    emulated.clock.advance(1.0)
    waiting = emulated.ask_fresh(5000)
    await emulated.install(1)
    emulated.run_out()
    assert emulated.ended_s[running] < emulated.ended_s[waiting]
    assert emulated.results[waiting].spans == (Span(1, 0, 300),)


async def test_usage_shares_every_busy_moment_among_the_requests_that_it_is_spent_on():
    emulated = await Emulated(response_tokens=lambda tag: len(tag) * 100).start()
    ids = [emulated.ask_fresh(500, tag=tag) for tag in ("a", "bb", "bb", "dddd")]
    emulated.clock.advance(1.5)
    await emulated.install(1)
    emulated.engine.abort("inbox", [ids[3]])
    emulated.run_out()
    usage = emulated.engine.usage()
    shares_s = sum(one.prefill_s + one.decode_s + one.recompute_s for one in usage.values())
    assert shares_s == pytest.approx(emulated.engine.busy_s)
    assert (usage["bb"].num_requests, usage["bb"].num_prompt_tokens, usage["bb"].num_new_tokens) == (2, 1000, 400)


async def test_requests_wait_for_memory_that_running_ones_hold():
    emulated = await Emulated(kv_tokens=10_000, max_context=6000).start()
    first, second = emulated.ask_fresh(5000), emulated.ask_fresh(5000)
    emulated.run_out()
    assert emulated.ended_s[second] == pytest.approx(2 * emulated.ended_s[first])
    with pytest.raises(ConfigError, match="memory for the KV of 10000 tokens and a context may have 20000"):
        Emulated(kv_tokens=10_000, max_context=20_000)


async def test_one_id_stands_for_many_tokens_in_time_and_for_one_in_counts():
    coarse = await Emulated(response_tokens=lambda _: 640, tokens_per_id=64, max_context=512).start()
    fine = await Emulated(response_tokens=lambda _: 640).start()
    coarse.ask_fresh(20, max_tokens=100)
    fine.ask_fresh(20 * 64)
    for one in (coarse, fine):
        one.run_out()
    assert coarse.ended_s[0] == pytest.approx(fine.ended_s[0])
    assert coarse.num_tokens(0) == 10
    usage = coarse.engine.usage()["default"]
    assert (usage.num_prompt_tokens, usage.num_new_tokens) == (20, 10)


async def test_a_response_ends_with_its_stop_token_and_has_no_other_one():
    emulated = await Emulated(vocab_size=4).start()
    stopped, cut = (emulated.ask([1], stop_token_ids=(2, 3), max_tokens=limit) for limit in (100, 99))
    emulated.run_out()
    for one, reason, last in ((stopped, FinishReason.STOP, 2), (cut, FinishReason.LENGTH, None)):
        token_ids = np.frombuffer(emulated.results[one].token_ids, "<i4")
        assert emulated.results[one].finish_reason is reason
        assert not np.isin(token_ids[:-1], (2, 3)).any()
        assert (token_ids[-1] == last) == (last is not None)


async def test_a_response_length_that_cannot_be_told_fails_the_engine_once():
    emulated = await Emulated(response_tokens=lambda tag: {"known": 10}[tag]).start()
    ids = [emulated.ask([1], tag="known"), emulated.ask([1], tag="unknown"), emulated.ask([1], tag="unknown")]
    assert emulated.clock.num_timers == 0
    assert len(emulated.failures) == 1
    assert all("the engine failed: KeyError" in emulated.results[one].error for one in ids[:2])


async def test_a_step_that_fails_in_the_middle_answers_everything_with_an_error_and_is_reported_once(monkeypatch):
    emulated = await Emulated().start()
    ids = [emulated.ask_fresh(100) for _ in range(3)]
    monkeypatch.setattr(emulated.engine._batch, "go_on_to_next_end", lambda: 1 / 0)
    emulated.clock.advance(10.0)
    assert all("the engine failed: ZeroDivisionError" in emulated.results[one].error for one in ids)
    assert (len(emulated.failures), emulated.engine.num_running, emulated.clock.num_timers) == (1, 0, 0)
    emulated.engine.abort("inbox", ids)
    with pytest.raises(EngineError, match="failed"):
        await emulated.engine.suspend()


async def test_closing_answers_what_is_outstanding():
    emulated = await Emulated().start()
    one = emulated.ask_fresh(100)
    await emulated.engine.close()
    await emulated.engine.close()
    assert "closed" in emulated.results[one].error
    assert (emulated.clock.num_timers, emulated.failures) == (0, [])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), tokens_per_id=st.sampled_from([1, 16]))
async def test_every_request_is_answered_once_with_what_it_asked_for_whatever_happens_meanwhile(
    seed: int, tokens_per_id: int
):
    rng = random.Random(seed)
    emulated = await Emulated(
        response_tokens=lambda tag: int(tag) * tokens_per_id,
        tokens_per_id=tokens_per_id,
        max_context=400,
        kv_tokens=1200 * tokens_per_id,
    ).start()
    asked: dict[int, int] = {}
    aborted: set[int] = set()
    version, conversation = 0, [1]
    for _ in range(rng.randint(1, 60)):
        match rng.choice(["ask", "ask", "wait", "wait", "abort", "install"]):
            case "ask":
                length = rng.randint(1, 100)
                prompt = (
                    conversation if rng.random() < 0.5 else [rng.randrange(1000) for _ in range(rng.randint(1, 90))]
                )
                asked[emulated.ask(prompt, tag=str(length))] = length
            case "wait":
                emulated.clock.advance(rng.expovariate(2.0), late_s=rng.random() / 10)
            case "abort" if asked:
                aborted.add(one := rng.choice(list(asked)))
                emulated.engine.abort("inbox", [one])
            case "install":
                version += 1
                await emulated.install(version, after_s=rng.random())
            case _:
                pass
        assert emulated.clock.num_timers <= 1
        if emulated.results and len(conversation) < 100:
            answer = rng.choice(list(emulated.results.values()))
            conversation = [*conversation, *np.frombuffer(answer.token_ids, "<i4").tolist()][:100]
    emulated.run_out()
    assert emulated.results.keys() == asked.keys()
    assert emulated.failures == []
    for one, length in asked.items():
        result = emulated.results[one]
        assert emulated.num_tokens(one) == length or (one in aborted and emulated.num_tokens(one) < length)
        assert len(result.logprobs) == len(result.token_ids)
        edges = [edge for span in result.spans for edge in (span.start, span.end)]
        assert edges == sorted(edges)
        assert edges[1:-1:2] == edges[2::2]
        assert [*edges[:1], *edges[-1:]] in ([], [0, emulated.num_tokens(one)])
        versions = [span.version for span in result.spans]
        assert versions == sorted(set(versions))
    usage = emulated.engine.usage().values()
    assert sum(one.num_new_tokens for one in usage) == sum(map(emulated.num_tokens, asked))
    await emulated.install(version + 1)
    assert emulated.engine._memory.free == 1200
