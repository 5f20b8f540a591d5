"""Compares two answers without a computer algebra system.

That is linear in the texts and bounded, so that no text of a policy can hold up a process that others share. What is
equal here is equal for everybody; what is not may still be, for a verifier that knows algebra
(`rollart_hpc.reward_functions.math_verify`).
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 1000
"""Characters of an answer that is compared as more than text."""
_MAX_DIGITS = 60
_DROPPED = re.compile(r"\\left|\\right|\$|\\%|%")
_SPACE = re.compile(r"\\[,;:! ]")
_FRACTION = re.compile(r"\\[dt]?frac(\{-?\d+\}|\d)(\{-?\d+\}|\d)(?=(\d?))")
"""LaTeX takes a single digit without braces."""
_MIXED = re.compile(r"(\d)(?:\s*(?=\\[dt]?frac)|\s+(?=\d+\s*/))")
"""Between a whole number and the fraction beside it, which without a sign would be read as one number."""
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}")
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:/([+-]?\d+(?:\.\d*)?))?")


def same_answer(given: str, expected: str) -> bool:
    """Whether both are the same number, or the same text but for spaces, case and LaTeX's dress."""
    if given.strip() == expected.strip():
        return True
    if len(given) > MAX_LENGTH or len(expected) > MAX_LENGTH:
        return False
    given, expected = _undressed(given), _undressed(expected)
    if not given or not expected:
        return False
    if given == expected:
        return True
    number, other = _number(given), _number(expected)
    return number is not None and number == other


def _undressed(answer: str) -> str:
    answer = _SPACE.sub(" ", _DROPPED.sub("", _TEXT.sub(r"\1", answer)))
    answer = "".join(_MIXED.sub(r"\1+", answer).split()).lower().rstrip(".")
    answer = _FRACTION.sub(lambda found: f"{found[1].strip('{}')}/{found[2].strip('{}')}{'*' * len(found[3])}", answer)
    return answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer


def _number(answer: str) -> Fraction | None:
    found = _NUMBER.fullmatch(answer)
    if found is None or len(answer) > _MAX_DIGITS or not answer.isascii():
        return None
    sign, numerator, denominator = found.groups()
    divisor = Fraction(denominator or 1)
    if divisor == 0:
        return None
    return Fraction(numerator) / divisor * (-1 if sign == "-" else 1)
