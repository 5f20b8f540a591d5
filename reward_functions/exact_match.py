"""Reward of an answer that must be the right one word for word, but for case, white space and outer punctuation.

For answers that are formulas see `math_verify`. The answer is read from the policy's last text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from rollart_hpc.types import Episode, Score

_OUTER = " \t\n.,;:!?\"'`$*()[]{}"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


async def score(
    episode: Episode,
    *,
    field: str = "answer",
    extract: str = "boxed",
    articles: bool = True,
    right: float = 1.0,
    wrong: float = 0.0,
    unanswered: float = 0.0,
) -> Score:
    """``right`` if the policy's answer is the one in ``episode.info[field]``, or one of those in a list there.

    Args:
        episode: a finished episode.
        field: of the info, with the right answer: text, a number, or a list of these.
        extract: where the policy's answer stands: ``boxed`` (the last ``\\boxed{}``), ``tag`` (the last
            ``<answer>...</answer>``), ``last_line`` (that is not empty), ``text`` (all of it).
        articles: whether a, an and the count; SQuAD's rule is that they do not.
        right: the reward of a right answer.
        wrong: the reward of a wrong answer.
        unanswered: the reward of a text in which no answer was found.
    """
    if extract not in _EXTRACTORS:
        raise ValueError(f"extract is {extract!r}; expected one of {', '.join(_EXTRACTORS)}")
    expected = {_normal(answer, articles) for answer in _right_answers(episode, field)}
    given = _EXTRACTORS[extract](episode.turns[-1].action) if episode.turns else None
    if given is None:
        return Score(reward=unanswered, metrics={"answered": 0.0})
    success = _normal(given, articles) in expected
    return Score(reward=right if success else wrong, success=success, metrics={"answered": 1.0})


def _right_answers(episode: Episode, field: str) -> Sequence[str]:
    """The answers in the info; an episode without one cannot be scored, which is not the policy's fault."""
    if field not in episode.info:
        raise KeyError(f"the info has no {field!r}, only {sorted(episode.info)}; name the field of the right answer")
    value: Any = episode.info[field]
    answers = value if isinstance(value, list | tuple) else [value]
    if not answers or any(isinstance(answer, bool) or not isinstance(answer, str | int | float) for answer in answers):
        raise ValueError(f"info[{field!r}] is {value!r:.80}; expected text, a number, or a list of these")
    if not all(str(answer).strip() for answer in answers):
        raise ValueError(f"info[{field!r}] is {value!r:.80}; the right answer is empty")
    return [text for answer in answers for text in _texts(answer)]


def _texts(answer: str | float) -> list[str]:
    """The answer as people write it: 0.00002 is not 2e-05, and a 3.0 is also 3."""
    if not isinstance(answer, float):
        return [str(answer)]
    plain = format(Decimal(str(answer)), "f")
    return [plain, plain.removesuffix(".0")]


def _normal(answer: str, articles: bool) -> str:
    text = " ".join(unicodedata.normalize("NFKC", answer).casefold().split())
    if not articles:
        # An answer that is nothing but an article, as one of several choices may be, is compared as it is.
        text = " ".join(_ARTICLES.sub(" ", text).split()).strip(_OUTER) or text
    # So is one that is nothing but punctuation, as in "()".
    inner = text.strip(_OUTER) or text
    # The point of ".5" is no punctuation.
    text = f".{inner}" if inner[:1].isdigit() and text.partition(inner)[0].endswith(".") else inner
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def _boxed(text: str) -> str | None:
    begin = text.rfind("\\boxed{")
    depth = 0
    for position in range(begin + len("\\boxed"), len(text) if begin >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin + len("\\boxed{") : position]
    return None


def _tagged(text: str) -> str | None:
    end = text.rfind("</answer>")
    begin = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[begin + len("<answer>") : end] if begin >= 0 else None


def _last_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[-1] if lines else None


def _whole(text: str) -> str | None:
    return text if text.strip() else None


_EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": _boxed,
    "tag": _tagged,
    "last_line": _last_line,
    "text": _whole,
}
