import math
import re
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.envs.adapters.boxed import boxed_answer
from rollart_hpc.envs.gem_math import GemMath
from rollart_hpc.envs.gem_math.answers import same_answer
from rollart_hpc.envs.gem_math.problems import FAMILIES, LEVELS, draw


def numbers(question: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", question)]


def expression(question: str) -> Fraction:
    """Whole numbers become fractions, so that Python's own arithmetic is exact."""
    return eval(re.sub(r"\d+", r"Fraction(\g<0>)", re.sub(r"(\d)(x)", r"\1*x", question)), {"Fraction": Fraction})


def side(text: str, x: Fraction) -> Fraction:
    exact = re.sub(r"\d+", r"Fraction(\g<0>)", re.sub(r"(\d)x", r"\1*x", text))
    return eval(exact, {"Fraction": Fraction, "x": x})


def linear(question: str, answer: Fraction) -> bool:
    left, right = question.removeprefix("Solve for x: ").rstrip(".").split(" = ")
    return side(left, answer) == side(right, answer) and side(left, answer + 1) != side(right, answer + 1)


def two_equations(question: str, answer: Fraction) -> bool:
    (a, b, c), (d, e, f) = (
        (int(x), int(sign + y), int(value))
        for x, sign, y, value in re.findall(r"(\d+)x ([+-]) (\d+)y = (-?\d+)", question)
    )
    determinant = a * e - b * d
    return Fraction(c * e - b * f + a * f - c * d, determinant) == answer


def percentage(question: str, answer: Fraction) -> bool:
    value = Fraction(numbers(question)[0])
    for word, percent in re.findall(r"(raised|lowered) by (\d+)%", question):
        value *= 1 + (Fraction(percent) if word == "raised" else -Fraction(percent)) / 100
    return value == answer


def divisors(question: str, answer: Fraction) -> bool:
    a, b = numbers(question)
    if "greatest" in question:
        return answer == max(n for n in range(1, a + 1) if a % n == b % n == 0)
    return answer % a == answer % b == 0 and answer == a * b // math.gcd(a, b)


def remainder(question: str, answer: Fraction) -> bool:
    base, exponent, modulus = numbers(question)
    return base**exponent % modulus == answer


def sequence(question: str, answer: Fraction) -> bool:
    *shown, count = numbers(question)
    terms = [shown[0] + (shown[1] - shown[0]) * index for index in range(count)]
    return terms[:4] == shown and answer == (sum(terms) if "sum" in question else terms[-1])


def counting(question: str, answer: Fraction) -> bool:
    chosen, total, *_ = numbers(question)
    ways = math.prod(range(total - chosen + 1, total + 1))
    return answer == (ways if "runners" in question else ways // math.factorial(chosen))


def geometry(question: str, answer: Fraction) -> bool:
    given = numbers(question)
    if len(given) == 2:
        return given[0] ** 2 + given[1] ** 2 == answer**2
    return given[0] * given[1] - given[2] * given[3] == answer


def computed(question: str, answer: Fraction) -> bool:
    return expression(question.removeprefix("Compute ").split(" and give")[0].rstrip(".")) == answer


ORACLES: dict[str, Callable[[str, Fraction], bool]] = {
    "arithmetic": computed,
    "counting": counting,
    "divisors": divisors,
    "fractions": computed,
    "geometry": geometry,
    "linear_equation": linear,
    "percentage": percentage,
    "remainder": remainder,
    "sequence": sequence,
    "two_equations": two_equations,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_of_a_problem_is_what_its_question_asks_for(family: str) -> None:
    for level in LEVELS:
        for seed in range(60):
            problem = draw(Random(seed), family, level)
            assert ORACLES[family](problem.question, Fraction(problem.answer)), problem
            assert str(Fraction(problem.answer)) == problem.answer


def test_problems_are_a_pure_function_of_the_seed_and_differ() -> None:
    env = GemMath(level=[1, 5])
    drawn = [env.reset(seed=seed, task={}) for seed in range(300)]
    assert [GemMath(level=[1, 5]).reset(seed=seed, task={}) for seed in range(300)] == drawn
    assert len({question for question, _ in drawn}) > 280
    assert {info["family"] for _, info in drawn} == set(FAMILIES)
    assert {info["level"] for _, info in drawn} == set(LEVELS)
    only = GemMath(families=["sequence"], level=2).reset(seed=0, task={})[1]
    assert (only["family"], only["level"]) == ("sequence", 2)


def test_good_bad_and_nonsense_answers_get_gems_rewards() -> None:
    env = GemMath()
    for seed in range(50):
        first, info = env.reset(seed=seed, task={})
        assert first.startswith("Reason step by step")
        for text, reward in [
            (f"So \\boxed{{1234567}} no, \\boxed{{ {info['answer']} }}.", 1.0),
            (f"\\boxed{{{info['answer']}}} no, \\boxed{{1234567}}", 0.0),
            (info["answer"], 0.0),
            ("\ud800\\boxed{", 0.0),
            ("", 0.0),
        ]:
            env.reset(seed=seed, task={})
            observation, given_reward, terminated, truncated, last = env.step(text)
            assert (observation, given_reward, terminated, truncated) == ("", reward, True, False)
            assert last["success"] is (reward == 1.0)
    strict = GemMath(format_error_reward=-0.1)
    strict.reset(seed=0, task={})
    assert strict.step("no box")[1] == -0.1


def test_several_attempts_say_what_was_wrong_but_not_the_answer() -> None:
    env = GemMath(attempts=3)
    env.reset(seed=0, task={"question": "6*7?", "answer": 42})
    assert env.step("\\boxed{41}")[:4] == ("That is not right. Try again.", 0.0, False, False)
    assert env.step("42")[:4] == ("No answer in \\boxed{} was found. Try again.", 0.0, False, False)
    assert env.step("\\boxed{42}") == ("", 1.0, True, False, {"success": True, "answered": True, "attempts": 3})


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"question": "?", "answer": "42"}, "42"),
        ({"problem": "?", "answer": 42, "source": "x"}, "42"),
        ({"prompt": "?", "target": ["42", 43]}, ["42", "43"]),
        ({"problem": "?", "solution": "It is $\\boxed{\\frac{1}{2}}$."}, "\\frac{1}{2}"),
        ({"question": "?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"}, "42"),
    ],
)
def test_rows_of_data_sets_are_problems(row: dict[str, Any], gold: Any) -> None:
    env = GemMath(instructions="")
    assert env.reset(seed=0, task=row)[0] == "?"
    assert env.reset(seed=0, task=row)[1]["answer"] == gold
    assert env.step(f"\\boxed{{{gold if isinstance(gold, str) else gold[-1]}}}")[1] == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "?"}, "fields \\['text'\\]; expected one named question or problem or prompt"),
        ({"question": "?", "gold": "1"}, "expected one named answer or solution or target"),
        ({"question": "?", "answer": None}, "expected text, a number"),
        ({"question": "?", "answer": []}, "expected text, a number"),
        ({"question": ["?"], "answer": "1"}, "expected text"),
        ({"question": " ", "answer": "1"}, "expected text"),
    ],
)
def test_a_row_with_wrong_fields_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GemMath().reset(seed=0, task=row)


@pytest.mark.parametrize(
    "args", [{"families": ["algebra"]}, {"families": []}, {"level": 6}, {"level": [3, 2]}, {"attempts": 0}]
)
def test_wrong_arguments_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        GemMath(**args)


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ("1/2", "0.5", True),
        ("\\dfrac{1}{2}", "1/2", True),
        ("\\frac12", "1/2", True),
        ("\\frac123", "4", False),
        ("-\\frac{3}{4}", "-3/4", True),
        ("1,234", "1234", True),
        ("1,23", "123", False),
        ("$ 42. $", "42", True),
        ("42%", "42", True),
        ("+7", "7.0", True),
        ("\\text{Blue}", "blue", True),
        ("x + 1", "x+1", True),
        ("2(x+1)", "2x+2", False),
        ("1/0", "1/0", True),
        ("1/0", "2/0", False),
        ("9" * 5000, "9" * 5000, True),
        ("9" * 5000, "1", False),
        ("", "", True),
        ("", "0", False),
        ("٣", "3", False),
    ],
)
def test_answers_are_the_same_number_or_the_same_text(given: str, expected: str, same: bool) -> None:
    assert same_answer(given, expected) is same


@pytest.mark.parametrize(
    ("mixed", "read_as_one"),
    [
        (r"1\frac{1}{2}", "11/2"),
        (r"1 \dfrac12", "11/2"),
        (r"1\,\frac{1}{2}", "11/2"),
        ("3 1/2", "31/2"),
        (r"3\ 1/2", "31/2"),
        (r"\frac{1}{2}3", "1/23"),
    ],
)
def test_a_number_beside_a_fraction_is_no_part_of_it(mixed: str, read_as_one: str) -> None:
    assert not same_answer(mixed, read_as_one)
    assert not same_answer(read_as_one, mixed)
    assert same_answer(f" {mixed} ", mixed)


@pytest.mark.parametrize("answer", ["", "  ", "work #### ", ["2", ""]])
def test_a_row_whose_answer_is_empty_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="which is empty"):
        GemMath().reset(seed=0, task={"question": "1 + 1?", "answer": answer})


@given(st.text(alphabet="\\boxed{}frac1/2., ", max_size=60))
def test_any_text_is_read(text: str) -> None:
    answer = boxed_answer(text)
    assert answer is None or same_answer(answer, answer)
    same_answer(text, "1/2")
