import pytest

from rollart_hpc.envs.arithmetic import Arithmetic
from rollart_hpc.envs.frozen_lake import FrozenLake
from rollart_hpc.reward_functions import arithmetic, frozen_lake
from rollart_hpc.types import Episode, Score


def episode(info: dict[str, object]) -> Episode:
    return Episode(task="t", seed=0, turns=[], final_observation="", terminated=True, truncated=False, info=info)


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        (["down", "down", "right", "right", "down", "right"], 1 + 0.5 - 0.06),
        (["right", "down"], 0.5 / 6 - 0.02),
        (["nonsense", "down", "left right", "down"], 0.5 * 2 / 6 - 0.5 * 2 / 4 - 0.04),
        (["left"] * 10, -0.1),
        ([], 0.0),
    ],
    ids=["goal", "hole", "half invalid", "bumping", "no turn"],
)
async def test_the_lake_pays_the_goal_the_way_and_legible_short_play(actions: list[str], reward: float) -> None:
    lake = FrozenLake()
    _, info = lake.reset(seed=0, task={})
    for action in actions:
        info |= lake.step(action)[4]
    score = await frozen_lake.score(episode(info))
    assert score.reward == pytest.approx(reward)
    assert score.success == (len(actions) == 6)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<answer>12</answer>", Score(reward=1.0, success=True, metrics={"answered": 1.0})),
        ("<answer>13</answer>", Score(reward=0.0, success=False, metrics={"answered": 1.0})),
        ("12", Score(reward=-0.5, success=False, metrics={"answered": 0.0})),
    ],
)
async def test_a_sum_pays_the_exact_match_and_costs_a_missing_answer(text: str, score: Score) -> None:
    environment = Arithmetic()
    seed = next(seed for seed in range(1000) if environment.reset(seed=seed, task={})[0] == "7+5=?")
    _, info = environment.reset(seed=seed, task={})
    info |= environment.step(text)[4]
    assert await arithmetic.score(episode(info)) == score


async def test_a_sum_cut_before_its_answer_costs_as_much() -> None:
    assert (await arithmetic.score(episode({"expected": "12"}))).reward == -0.5
