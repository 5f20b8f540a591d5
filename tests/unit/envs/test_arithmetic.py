from random import Random

import pytest

from rollart_hpc.envs.arithmetic import Arithmetic
from rollart_hpc.envs.arithmetic.demonstrations import bad_play


def question(seed: int, digits: int = 1) -> tuple[str, int]:
    text, _ = Arithmetic(digits=digits).reset(seed=seed, task={})
    return text, sum(int(operand) for operand in text.removesuffix("=?").split("+"))


def test_the_sum_is_a_pure_function_of_the_seed() -> None:
    assert [question(seed) for seed in range(50)] == [question(seed) for seed in range(50)]
    assert len({question(seed)[0] for seed in range(1000)}) == 100
    assert all(len(question(seed, digits=3)[0]) == len("007+005=?") for seed in range(50))


def test_the_right_answer_succeeds_with_and_without_leading_zeros() -> None:
    arithmetic = Arithmetic()
    for seed in range(20):
        _, expected = question(seed)
        for answer in (f"{expected}", f"{expected:02d}", f"{expected:05000d}"):
            arithmetic.reset(seed=seed, task={})
            observation, reward, terminated, truncated, info = arithmetic.step(f"so <answer>{answer}</answer>")
            assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
            assert info == {"success": True, "answered": True, "expected": str(expected)}


@pytest.mark.parametrize(
    ("text", "answered"),
    [
        ("", False),
        ("<answer></answer>", False),
        ("<answer>twelve</answer>", False),
        ("<answer>٣</answer>", False),
        ("<answer>99</answer>", True),
        ("<answer>" + "9" * 10_000 + "</answer>", True),
    ],
)
def test_anything_else_is_wrong_and_no_exception(text: str, answered: bool) -> None:
    arithmetic = Arithmetic()
    arithmetic.reset(seed=0, task={})
    _, reward, terminated, _, info = arithmetic.step(text)
    assert (reward, terminated, info["success"], info["answered"]) == (0.0, True, False, answered)


def test_no_digits_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Arithmetic(digits=0)


def test_bad_play_is_right_without_a_carry_and_mostly_wrong_with_one() -> None:
    rng = Random(0)
    right: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(2000):
        ((asked, action),) = bad_play(rng)
        expected = sum(int(operand) for operand in asked.removesuffix("=?").split("+"))
        right[expected >= 10].append(int(action.split("<answer>")[1].removesuffix("</answer>")) == expected)
    rates = {carry: sum(results) / len(results) for carry, results in right.items()}
    assert rates == {False: pytest.approx(0.91, abs=0.03), True: pytest.approx(0.27, abs=0.04)}
