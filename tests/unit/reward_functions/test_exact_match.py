from typing import Any

import pytest

from rollart_hpc.reward_functions import episode_return
from rollart_hpc.reward_functions.exact_match import score
from rollart_hpc.types import Episode, FinishReason, Turn


def episode(*texts: str, rewards: tuple[float, ...] = (), **info: Any) -> Episode:
    given = rewards or (0.0,) * len(texts)
    turns = [
        Turn(observation="?", action=text, reward=reward, finish_reason=FinishReason.STOP)
        for text, reward in zip(texts, given, strict=True)
    ]
    return Episode(task="t", seed=0, turns=turns, final_observation="", terminated=True, truncated=False, info=info)


@pytest.mark.parametrize(
    ("text", "answer", "args", "reward"),
    [
        ("it is \\boxed{Paris}", "paris", {}, 1.0),
        ("\\boxed{Rome} or \\boxed{ Paris. }", "Paris", {}, 1.0),
        ("\\boxed{Paris} or \\boxed{Rome}", "Paris", {}, 0.0),
        ("\\boxed{\\text{a}}", "\\text{a}", {}, 1.0),
        ("\\boxed{1,234}", 1234, {}, 1.0),
        ("\\boxed{1,23}", 123, {}, 0.0),
        ("\\boxed{The  Eiffel\nTower}", "eiffel tower", {}, 0.0),
        ("\\boxed{The  Eiffel\nTower}", "eiffel tower", {"articles": False}, 1.0),
        ("\\boxed{()}", "()", {}, 1.0),
        ("\\boxed{()}", "[]", {}, 0.0),
        ("\\boxed{b}", ["a", "b"], {}, 1.0),
        ("\\boxed{}", "A", {"articles": False}, 0.0),
        ("\\boxed{the}", "A", {"articles": False}, 0.0),
        ("\\boxed{(a)}", "A", {"articles": False}, 1.0),
        ("\\boxed{.5}", 5, {}, 0.0),
        ("\\boxed{.5.}", ".5", {}, 1.0),
        ("\\boxed{(5).}", "5", {}, 1.0),
        ("\\boxed{0.00002}", 0.00002, {}, 1.0),
        ("\\boxed{3}", 3.0, {}, 1.0),
        ("\\boxed{3.0}", 3.0, {}, 1.0),
        ("Paris", "Paris", {"unanswered": -0.5}, -0.5),
        ("\\boxed{Paris", "Paris", {"unanswered": -0.5}, -0.5),
        ("<answer>x</answer> <answer> Paris </answer>", "Paris", {"extract": "tag"}, 1.0),
        ("</answer> Paris <answer>", "Paris", {"extract": "tag", "unanswered": -0.5}, -0.5),
        ("I think.\nParis\n\n", "Paris", {"extract": "last_line"}, 1.0),
        (" Paris", "Paris", {"extract": "text"}, 1.0),
        ("", "Paris", {"extract": "text", "unanswered": -0.5, "wrong": -0.1}, -0.5),
        ("London", "Paris", {"extract": "text", "wrong": -0.1}, -0.1),
    ],
)
async def test_the_last_text_is_compared_with_the_right_answers(
    text: str, answer: Any, args: dict[str, Any], reward: float
) -> None:
    got = await score(episode("\\boxed{Paris}", text, answer=answer), **args)
    assert (got.reward, got.success) == (reward, reward == 1.0)


async def test_an_episode_without_turns_is_unanswered() -> None:
    assert (await score(episode(answer="x"), unanswered=-1.0)).reward == -1.0


@pytest.mark.parametrize(
    ("info", "args", "error", "message"),
    [
        ({"gold": "x"}, {}, KeyError, "name the field"),
        ({"answer": []}, {}, ValueError, "expected text"),
        ({"answer": None}, {}, ValueError, "expected text"),
        ({"answer": " "}, {}, ValueError, "empty"),
        ({"answer": "x"}, {"extract": "json"}, ValueError, "expected one of boxed, tag"),
    ],
)
async def test_an_episode_without_a_right_answer_is_a_fault(
    info: dict[str, Any], args: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await score(episode("\\boxed{x}", **info), **args)


async def test_the_return_is_the_discounted_sum_of_the_turns() -> None:
    played = episode("a", "b", "c", rewards=(1.0, 0.0, 4.0), success=True)
    assert await episode_return.score(played) == episode_return.Score(reward=5.0, success=True, metrics={"return": 5.0})
    assert (await episode_return.score(played, discount=0.5, scale=10.0)).reward == 20.0
    assert not (await episode_return.score(episode("a"))).success
