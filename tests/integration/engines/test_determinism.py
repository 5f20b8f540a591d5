"""Deterministic generation: the bits of a turn do not depend on its company, its order or its engine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
import pytest_asyncio

from rollart_hpc.data_plane.backends.vllm import compat
from tests.integration.engines.conftest import Policies

pytestmark = pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning")  # vLLM, at import

NUM_TURNS = 12
WIDE = 512
"""In a model of the other tests' width a CPU computes the same bits in any company."""


@pytest.fixture(scope="module")
def turns(make_prompt):
    """(prompt, max_tokens, fields) of turns; in threes they begin alike, as the turns of one trajectory do."""
    prompts = [make_prompt(number // 3, 150)[: 50 * (number % 3 + 1) - number] for number in range(NUM_TURNS)]
    return [
        (prompt, 10 + number, {"seed": 1000 + number, "temperature": (1.0, 0.7)[number % 2]})
        for number, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def opened(start_inbox, tmp_path_factory):
    wide = Policies(tmp_path_factory.mktemp("wide"), hidden_size=WIDE)

    @asynccontextmanager
    async def opened(kind, **settings):
        inbox = await start_inbox(kind, wide, **{"deterministic": True, **settings})
        try:
            yield inbox
        finally:
            await inbox.engine.close()
        assert inbox.failures == []

    return opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(opened, turns):
    """The bits of each turn alone, at an engine that read policy 0 from its files."""
    async with opened("core", seed=1) as inbox:
        return await one_by_one(inbox, turns)


def bits(result):
    assert result.error == ""
    return result.token_ids, result.logprobs, result.num_cached_tokens


async def one_by_one(inbox, turns):
    return [bits(await inbox.ask(prompt, count, **fields)) for prompt, count, fields in turns]


async def all_at_once(inbox, turns, order):
    """Sends the turns in an order, among others that have no seed; in the order of ``turns``."""
    requests = [inbox.request(prompt, count, **fields) for prompt, count, fields in turns]
    strangers = inbox.send(*(inbox.request([number, 1, 2], 20) for number in range(4)), inbox="strangers")
    inbox.send(*(requests[number] for number in order))
    results = [bits(result) for result in await asyncio.gather(*inbox.send(*requests))]
    await asyncio.gather(*strangers)
    return results


@pytest.mark.parametrize("kind", ["core", pytest.param("async", marks=pytest.mark.slow)])
async def test_a_turn_is_the_same_bit_for_bit_whatever_else_runs(kind, opened, turns, expected):
    backwards, shuffled = list(range(NUM_TURNS))[::-1], np.random.default_rng(0).permutation(NUM_TURNS).tolist()
    async with opened(kind, policy=1, seed=2) as inbox:
        assert await all_at_once(inbox, turns, backwards) != expected
        await inbox.install(0)
        assert await all_at_once(inbox, turns, backwards) == expected
        await inbox.install(1)
        await inbox.install(0)
        assert await all_at_once(inbox, turns, shuffled) == expected


async def test_without_the_setting_company_changes_bits(opened, turns, expected):
    async with opened("core", deterministic=False) as inbox:
        together = await all_at_once(inbox, turns, list(range(NUM_TURNS)))
    assert [logprobs for _, logprobs, _ in together] != [logprobs for _, logprobs, _ in expected]


def test_the_setting_reaches_vllm(policies):
    arguments = compat.engine_arguments(policies.config(deterministic=True, max_concurrent=9), seed=0)
    assert (arguments["max_num_seqs"], arguments["enable_prefix_caching"]) == (1, False)
