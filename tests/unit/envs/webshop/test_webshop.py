"""Goals, replay, threads, and what scripted policies earn in the shop that ships."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from rollart_hpc.data_plane.environment_instance import EnvironmentInstance
from rollart_hpc.envs.webshop import LargeWebShop, WebShop
from rollart_hpc.envs.webshop.catalogue import SHIPPED, load_catalogue
from rollart_hpc.envs.webshop.expert import play
from rollart_hpc.reward_functions.webshop import score
from rollart_hpc.types import Episode, FinishReason, Score, Turn
from tests.unit.envs.webshop.small_shop import TO_RUNNER

FIELDS = "asin, instruction, attributes, options, price_limit"
TASK = {"asin": "B00TRAIL00", "instruction": "trail shoes", "attributes": ["steel toe"]}


def test_a_task_may_be_a_goal(shop: WebShop):
    assert "Instruction: [SEP] trail shoes [SEP]" in shop.reset(seed=7, task=TASK)[0]
    for action in ["search[trail]", "click[b00trail00]"]:
        shop.step(action)
    assert shop.step("click[buy now]")[1] == 1.0


def test_a_task_may_name_a_goal_by_its_number():
    shop, goals = WebShop(goals=[0, 10]), load_catalogue(SHIPPED).goals
    assert goals[700].instruction in shop.reset(seed=3, task={"goal": 700})[0]
    assert goals[3].instruction in shop.reset(seed=3, task={})[0]


def test_seeds_count_the_goals_of_the_range_round_and_round():
    shop, goals = WebShop(goals=[500, 503]), load_catalogue(SHIPPED).goals
    for seed, number in enumerate([500, 501, 502, 500, 501]):
        assert goals[number].instruction in shop.reset(seed=seed, task={})[0]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"goal": 1}, "goal of the task is 1; expected a number from 0 to 0"),
        ({"goal": True}, "goal of the task is True"),
        ({"goal": "0"}, "goal of the task is '0'"),
        ({"goal": 0, "asin": "B000RUNNER"}, f"the task has the fields asin, goal: .*expected goal, or {FIELDS}"),
        ({"question": "7+5"}, f"the task has the fields question: .*expected goal, or {FIELDS}"),
        (TASK | {"atributes": []}, "unknown field `atributes`"),
        (TASK | {"attributes": "steel toe"}, r"Expected `array`, got `str`"),
        (TASK | {"price_limit": 0}, "price_limit is 0; expected more than 0, or null"),
        (TASK | {"price_limit": float("nan")}, "price_limit is nan"),
        (TASK | {"instruction": " "}, "needs an instruction"),
        (TASK | {"asin": "B000000000"}, "'B000000000'; the catalogue has no such product"),
    ],
)
def test_a_task_with_wrong_fields_is_refused_with_the_right_ones(shop: WebShop, task: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        shop.reset(seed=0, task=task)


@pytest.mark.parametrize("goals", [[0], [0, 0], [-1, 2], [5, 4], [0, 10**6]])
def test_a_range_that_is_none_is_refused(goals: list[int]):
    with pytest.raises(ValueError, match=r"expected \[first, end\]"):
        WebShop(goals=goals)


@pytest.mark.parametrize("entry_point", ["WebShop", "LargeWebShop"])
def test_a_used_instance_plays_what_a_fresh_one_plays_and_its_info_is_plain(entry_point: str):
    used = EnvironmentInstance(f"rollart_hpc.envs.webshop:{entry_point}", {})
    assert used.properties.replayable

    def played(instance: EnvironmentInstance, seed: int) -> list[object]:
        rng, transitions = Random(seed), [instance.reset(seed, {}), instance.step("search[color size]")]
        while not transitions[-1].terminated:
            available = transitions[-1].info["available_actions"]
            transitions.append(instance.step(rng.choice(["search[blue]", "hm", *available])))
        return transitions

    fresh = f"rollart_hpc.envs.webshop:{entry_point}"
    episodes = {seed: played(used, seed) for seed in range(30)}
    assert all(played(EnvironmentInstance(fresh, {}), seed) == episodes[seed] for seed in range(30))


def test_threads_share_one_catalogue_and_play_what_one_plays_alone():
    def episode(seed: int) -> list[tuple[str, str]]:
        shop = WebShop()
        return play(shop, shop.reset(seed=seed, task={})[0])

    alone = [episode(seed) for seed in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(episode, list(range(40)) * 3)) == alone * 3
    assert LargeWebShop()._catalogue is WebShop()._catalogue


Policy = Callable[[WebShop, str], list[tuple[str, str]]]


def acting(*actions: str) -> Policy:
    def policy(shop: WebShop, observation: str) -> list[tuple[str, str]]:
        exchanges = []
        for action in actions:
            exchanges.append((observation, action))
            observation = shop.step(action)[0]
        return exchanges

    return policy


def first_hit(shop: WebShop, observation: str) -> list[tuple[str, str]]:
    wish = observation.split("Instruction: [SEP] ")[1].split(" [SEP] ", maxsplit=1)[0]
    results = shop.step(f"search[{wish}]")[4]["available_actions"]
    product = next(action for action in results if action.startswith("click[b0"))
    return acting(product, "click[buy now]")(shop, observation)


def earned(policy: Policy, seeds: range) -> list[Score]:
    shop = WebShop()
    scores = []
    for seed in seeds:
        exchanges = policy(shop, shop.reset(seed=seed, task={})[0])
        text, _, terminated, _, info = shop.step("hm")
        turns = [
            Turn(observation=seen, action=text, reward=0, finish_reason=FinishReason.STOP) for seen, text in exchanges
        ]
        episode = Episode(
            task="webshop",
            seed=seed,
            turns=turns,
            final_observation=text,
            terminated=terminated,
            truncated=not terminated,
            info=info,
        )
        scores.append(asyncio.run(score(episode)))
    return scores


def test_an_expert_that_only_reads_pages_buys_what_was_asked_for():
    scores = earned(play, range(200))
    assert sum(score.success for score in scores) >= 180
    assert all(score.success == (score.reward == 1.0) for score in scores)


def test_buying_the_first_hit_earns_a_part_and_seldom_all():
    scores = earned(first_hit, range(200))
    assert 0.2 < sum(score.reward for score in scores) / 200 < 0.8
    assert sum(score.success for score in scores) < 20
    assert all(score.metrics["bought"] for score in scores)


@pytest.mark.parametrize(
    "policy",
    [
        acting("click[buy now]", "buy now", "search[]"),
        acting(*TO_RUNNER, "click[buy now]"),
        acting("search[shoes]", "search[lamp]"),
        acting("Your score (min 0.0, max 1.0) [SEP] 1.0", '{"bought": true, "score": 1.0, "reward_details": {}}'),
        acting("search[shoes] [SEP] Thank you for shopping with us!"),
        acting(),
    ],
    ids=["buys without a search", "made-up product", "never buys", "claims a score", "claims a purchase", "nothing"],
)
def test_who_buys_nothing_earns_nothing_whatever_is_written(policy: Policy):
    for result in earned(policy, range(5)):
        assert (result.reward, result.success, result.metrics["bought"]) == (0.0, False, 0.0)
        assert set(result.metrics) == {"bought", "invalid_share"}


@pytest.mark.parametrize(("whole", "success"), [(1.0, True), (0.96875, False)])
def test_only_the_whole_score_is_a_success(whole: float, success: bool):
    parts = {"r_type": 1.0, "r_att": None, "r_option": 1.0, "r_price": 1.0}
    info = {"turns": 4, "invalid_turns": 0, "bought": True, "score": whole, "reward_details": parts}
    episode = Episode(
        task="webshop", seed=0, turns=[], final_observation="", terminated=True, truncated=False, info=info
    )
    result = asyncio.run(score(episode))
    assert (result.reward, result.success) == (whole, success)
    assert "r_att" not in result.metrics


def test_the_parts_of_the_score_are_metrics(shop: WebShop):
    shop.reset(seed=0, task={})
    acting(*TO_RUNNER, "click[10]", "click[buy now]")(shop, "")
    info = shop.step("hm")[4]
    episode = Episode(
        task="webshop", seed=0, turns=[], final_observation="", terminated=True, truncated=False, info=info
    )
    # non slip, but neither black nor 9, within 50: (1 + 0 + 1) / 4
    assert asyncio.run(score(episode)) == Score(
        reward=0.5,
        success=False,
        metrics={"bought": 1.0, "invalid_share": 0.2, "r_type": 1.0, "r_att": 1.0, "r_option": 0.0, "r_price": 1.0},
    )
