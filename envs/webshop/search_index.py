"""BM25 over the texts of a catalogue, with the weights and parameters of WebShop's engine (Lucene: k1 0.9, b 0.4).

Invariants: an index never changes once it is built, so any number of threads may search it; equal scores are ordered
by the documents' numbers, so the same query gives the same hits on every machine.

Words are lower-cased, English stop words and possessive endings are dropped, plurals become singular. Lucene stems by
Porter's rules, which reach further (``running`` finds ``run``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

_K1, _B = 0.9, 0.4
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s$")
_DROPPED = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to
    was will with
"""
_STOP_WORDS = frozenset(_DROPPED.split())
_LONGEST_QUERY = 1000
"""Characters; a policy may write any number of them."""


class SearchIndex:
    """An inverted index: for each word the documents that hold it, with what the word adds to their scores."""

    def __init__(self, documents: Iterable[str]) -> None:
        self._words: dict[str, int] = {}
        words: list[int] = []
        holders: list[int] = []
        frequencies: list[int] = []
        lengths: list[int] = []
        for number, document in enumerate(documents):
            counted = Counter(words_of(document))
            lengths.append(sum(counted.values()))
            words.extend(self._words.setdefault(word, len(self._words)) for word in counted)
            holders.extend([number] * len(counted))
            frequencies.extend(counted.values())
        self._num_documents = len(lengths)
        by_word = np.argsort(np.array(words, np.int32), kind="stable")
        self._holders = np.array(holders, np.int32)[by_word]
        holders_per_word = np.bincount(np.array(words, np.int64), minlength=len(self._words))
        self._begins = np.concatenate([[0], np.cumsum(holders_per_word)])
        length = np.array(lengths, np.float64)[self._holders]
        frequency = np.array(frequencies, np.float64)[by_word]
        mean_length = max(float(np.mean(lengths)), 1.0) if lengths else 1.0
        saturation = frequency / (frequency + _K1 * (1 - _B + _B * length / mean_length))
        rarity = np.log1p((self._num_documents - holders_per_word + 0.5) / (holders_per_word + 0.5))
        self._weights = np.repeat(rarity, holders_per_word) * saturation

    def search(self, query: str, limit: int) -> list[int]:
        """Numbers of the best documents, best first; none that holds no word of the query."""
        scores = np.zeros(self._num_documents)
        for word, count in Counter(words_of(query[:_LONGEST_QUERY])).items():
            number = self._words.get(word)
            if number is not None:
                postings = slice(self._begins[number], self._begins[number + 1])
                scores[self._holders[postings]] += count * self._weights[postings]
        hits = np.flatnonzero(scores)
        if len(hits) > limit:
            lowest = np.partition(scores[hits], -limit)[-limit]
            hits = hits[scores[hits] >= lowest]
        best_first = np.argsort(-scores[hits], kind="stable")
        return hits[best_first][:limit].tolist()


def words_of(text: str) -> list[str]:
    """The words of a text by which it is found."""
    words = (_POSSESSIVE.sub("", word) for word in _WORD.findall(text.lower()))
    return [_singular(word) for word in words if word not in _STOP_WORDS]


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1]
