"""Problems by the rule: families of questions with one answer each, at levels 1 to 5.

A problem is a pure function of family, level and generator. Answers are whole numbers or reduced fractions ``a/b``, so
that every verifier reads them alike. What a level means is written at each family; a higher one is never easier.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random

LEVELS = range(1, 6)


@dataclass(frozen=True, slots=True)
class Problem:
    """One question and its answer."""

    question: str
    answer: str


def draw(rng: Random, family: str, level: int) -> Problem:
    """A problem of this family and level."""
    return FAMILIES[family](rng, level)


def _arithmetic(rng: Random, level: int) -> Problem:
    """level + 1 whole numbers joined by +, - and *; from level 3 with a pair of brackets."""
    numbers = [rng.randint(2, 9 * level) for _ in range(level + 1)]
    signs = [rng.choice("+-*") for _ in range(level)]
    terms = [str(number) for number in numbers]
    if level >= 3:
        begin = rng.randrange(level)
        terms[begin], terms[begin + 1] = f"({terms[begin]}", f"{terms[begin + 1]})"
    expression = terms[0] + "".join(f" {sign} {term}" for sign, term in zip(signs, terms[1:], strict=True))
    return Problem(f"Compute {expression}.", str(_value(expression)))


def _value(expression: str) -> int:
    """Of whole numbers, ``+ - *`` and at most one pair of brackets, by the usual precedence."""
    before, opening, rest = expression.partition("(")
    if opening:
        inside, _, after = rest.partition(")")
        value = _value(inside)
        # A negative value is kept out of the text, where its sign would be read as an operation.
        return _sum_of_products(f"{before}x{after}".split(), {"x": value})
    return _sum_of_products(expression.split(), {})


def _sum_of_products(tokens: list[str], names: dict[str, int]) -> int:
    numbers = [names[token] if token in names else int(token) for token in tokens[::2]]
    total, product, sign = 0, numbers[0], 1
    for operation, number in zip(tokens[1::2], numbers[1:], strict=True):
        if operation == "*":
            product *= number
        else:
            total, product, sign = total + sign * product, number, 1 if operation == "+" else -1
    return total + sign * product


def _fractions(rng: Random, level: int) -> Problem:
    """Two fractions (three from level 4), denominators up to 4 level + 2."""
    parts = [Fraction(rng.randint(1, 3 * level), rng.randint(2, 4 * level + 2)) for _ in range(3 if level >= 4 else 2)]
    sign = rng.choice("+-")
    total = parts[0] + sum(parts[1:]) * (1 if sign == "+" else -1)
    terms = f" {sign} ".join(f"{part.numerator}/{part.denominator}" for part in parts)
    return Problem(f"Compute {terms} and give the result as a reduced fraction or a whole number.", _shown(total))


def _linear_equation(rng: Random, level: int) -> Problem:
    """ax + b = c; from level 3 with x on both sides, from level 4 with a fraction as the solution."""
    solution = Fraction(rng.randint(-5 * level, 5 * level), rng.randint(2, level) if level >= 4 else 1)
    left = rng.randint(2, 3 + 2 * level) * solution.denominator
    right = rng.choice([factor for factor in range(-level, level + 1) if factor not in (0, left)]) if level >= 3 else 0
    offset = rng.randint(-9 * level, 9 * level)
    constant = left * solution + offset - right * solution
    # A fraction times another factor is no whole number: both sides are multiplied.
    scale = constant.denominator
    sides = _linear(left * scale, offset * scale), _linear(right * scale, int(constant * scale))
    return Problem(f"Solve for x: {sides[0]} = {sides[1]}.", _shown(solution))


def _two_equations(rng: Random, level: int) -> Problem:
    """Two equations in x and y with whole solutions; the answer is x + y."""
    x, y = rng.randint(-4 * level, 4 * level), rng.randint(-4 * level, 4 * level)
    bound = 2 + level
    first = rng.randint(1, bound), rng.randint(1, bound)
    second = rng.randint(1, bound), -rng.randint(1, bound)
    # The second coefficients differ in sign, so the determinant is never zero.
    lines = [f"{a}x {'+' if b > 0 else '-'} {abs(b)}y = {a * x + b * y}" for a, b in (first, second)]
    return Problem(f"Given {lines[0]} and {lines[1]}, find x + y.", str(x + y))


def _percentage(rng: Random, level: int) -> Problem:
    """A price changed by a per cent; from level 3 changed twice."""
    price = rng.randint(2, 12 * level) * 100
    changes = [(rng.choice(("raised", "lowered")), rng.randint(1, 9) * 5) for _ in range(2 if level >= 3 else 1)]
    value = Fraction(price)
    for word, percent in changes:
        value *= Fraction(100 + percent * (1 if word == "raised" else -1), 100)
    steps = " and then ".join(f"{word} by {percent}%" for word, percent in changes)
    question = f"A price of {price} coins is {steps}. What is the new price in coins?"
    return Problem(f"{question} Give a whole number or a reduced fraction.", _shown(value))


def _divisors(rng: Random, level: int) -> Problem:
    """Greatest common divisor or least common multiple of two numbers up to about 12 level squared."""
    common = rng.randint(2, 3 * level)
    a, b = common * rng.randint(2, 4 * level), common * rng.randint(2, 4 * level)
    if rng.random() < 0.5:
        return Problem(f"What is the greatest common divisor of {a} and {b}?", str(math.gcd(a, b)))
    return Problem(f"What is the least common multiple of {a} and {b}?", str(math.lcm(a, b)))


def _remainder(rng: Random, level: int) -> Problem:
    """A power modulo a number; base and exponent grow with the level."""
    base, exponent, modulus = rng.randint(2, 4 + 3 * level), rng.randint(2, 3 * level), rng.randint(3, 5 + 4 * level)
    question = f"What is the remainder when {base}^{exponent} is divided by {modulus}?"
    return Problem(question, str(pow(base, exponent, modulus)))


def _sequence(rng: Random, level: int) -> Problem:
    """The n-th term of an arithmetic sequence, from level 3 the sum of its first n terms."""
    first, step, count = rng.randint(-5 * level, 5 * level), rng.randint(2, 3 + 2 * level), rng.randint(6, 10 * level)
    shown = ", ".join(str(first + step * index) for index in range(4))
    if level < 3:
        question = f"An arithmetic sequence begins {shown}. What is its term number {count}?"
        return Problem(question, str(first + step * (count - 1)))
    question = f"An arithmetic sequence begins {shown}. What is the sum of its first {count} terms?"
    return Problem(question, str(count * first + step * count * (count - 1) // 2))


def _counting(rng: Random, level: int) -> Problem:
    """Ways to choose some of n, without and with order."""
    total = rng.randint(4, 4 + 2 * level)
    chosen = rng.randint(2, min(total - 1, 2 + level))
    if rng.random() < 0.5:
        question = f"In how many ways can {chosen} of {total} different books be chosen, if their order does not count?"
        return Problem(question, str(math.comb(total, chosen)))
    question = f"In how many ways can {chosen} of {total} runners come in first to place {chosen}, without ties?"
    return Problem(question, str(math.perm(total, chosen)))


def _geometry(rng: Random, level: int) -> Problem:
    """Area of a rectangle without a rectangle cut out; from level 3 the hypotenuse of a right triangle."""
    if level < 3:
        width, height = rng.randint(5, 10 * level), rng.randint(5, 10 * level)
        cut_width, cut_height = rng.randint(1, width - 1), rng.randint(1, height - 1)
        question = (
            f"A rectangle of {width} by {height} loses a rectangular piece of {cut_width} by {cut_height}. "
            "What area is left?"
        )
        return Problem(question, str(width * height - cut_width * cut_height))
    larger = rng.randint(2, level + 2)
    smaller, scale = rng.randint(1, larger - 1), rng.randint(1, level)
    legs = (larger**2 - smaller**2) * scale, 2 * larger * smaller * scale
    question = f"A right triangle has legs of {legs[0]} and {legs[1]}. How long is its hypotenuse?"
    return Problem(question, str((larger**2 + smaller**2) * scale))


FAMILIES: dict[str, Callable[[Random, int], Problem]] = {
    "arithmetic": _arithmetic,
    "counting": _counting,
    "divisors": _divisors,
    "fractions": _fractions,
    "geometry": _geometry,
    "linear_equation": _linear_equation,
    "percentage": _percentage,
    "remainder": _remainder,
    "sequence": _sequence,
    "two_equations": _two_equations,
}


def _shown(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else f"{number.numerator}/{number.denominator}"


def _linear(factor: int, constant: int) -> str:
    """``3x - 4`` without terms of zero and factors of one."""
    if factor == 0:
        return str(constant)
    head = {1: "x", -1: "-x"}.get(factor, f"{factor}x")
    if constant == 0:
        return head
    return f"{head} {'+' if constant > 0 else '-'} {abs(constant)}"
