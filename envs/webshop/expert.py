"""A shopper that reads the pages and buys well: shows that goals can be reached, and plays demonstrations.

Invariant: it acts on observations alone, as a policy does. It looks up what the instruction says on each product's
pages, buys the first that has all of it within the limit, and the best that it saw where none has.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from rollart_hpc.envs.webshop.search_index import words_of

_SEPARATOR = " [SEP] "
_LIMIT = re.compile(r", and price lower than ([\d.]+) dollars$")
_DOLLARS = re.compile(r"\$([\d.]+)")
_CHOICES = frozenset({"color", "size", "length", "pack", "style", "scent", "flavor", "model"})
_FILLER = _CHOICES | set(words_of("i am me it has is in some that find looking need want buy please show for to be"))
_MOST_VISITS = 30

Acting: TypeAlias = Generator[str, str, None]
"""Yields actions, is sent the observation that follows."""


class Shop(Protocol):
    """The part of an environment that a player needs."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, object]]:
        """One turn."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    instruction: str
    words: frozenset[str]
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    asin: str
    title: str
    price_tag: str

    def costs_at_most(self, limit: float) -> bool:
        return max(float(price) for price in _DOLLARS.findall(self.price_tag)) <= limit


def play(shop: Shop, observation: str) -> list[tuple[str, str]]:
    """Plays the episode that begins with ``observation`` until it ends; pairs of observation and action."""
    acting = shopping(observation)
    exchanges: list[tuple[str, str]] = []
    action = next(acting)
    while True:
        exchanges.append((observation, action))
        observation, _, has_ended, _, _ = shop.step(action)
        if has_ended:
            return exchanges
        try:
            action = acting.send(observation)
        except StopIteration:
            return exchanges


def shopping(observation: str) -> Acting:
    """The shopper; it ends with ``click[buy now]``, or without a purchase where the search finds nothing."""
    wish = _wish_of(observation)
    search = f"search[{wish.instruction}]"
    page, number, num_seen = (yield search), 1, 0
    best: tuple[int, int, _Listing] | None = None
    while True:
        for listing in sorted(_listings(page), key=lambda listing: -_num_told(wish, listing.title)):
            num_told, is_complete = yield from _looking_at(listing, wish)
            if is_complete:
                yield "click[buy now]"
                return
            if best is None or num_told > best[0]:
                best = num_told, number, listing
            num_seen += 1
            yield "click[< prev]"
        if num_seen >= _MOST_VISITS or "Next >" not in page.split(_SEPARATOR):
            break
        page, number = (yield "click[next >]"), number + 1
    if best is not None:
        _, number, listing = best
        yield search
        for _ in range(number - 1):
            yield "click[next >]"
        yield from _looking_at(listing, wish)
        yield "click[buy now]"


def _looking_at(listing: _Listing, wish: _Wish) -> Generator[str, str, tuple[int, bool]]:
    """Opens a product, reads it, chooses what the wish names, and stays on its page. Returns the number of the wish's
    words that it answers, and whether those are all, within the limit."""
    item = yield f"click[{listing.asin}]"
    features = yield "click[features]"
    yield "click[< prev]"
    description = yield "click[description]"
    yield "click[< prev]"
    texts = [listing.title, features.removeprefix(_heading(wish)), description.removeprefix(_heading(wish))]
    left = wish.instruction
    for value in sorted(_values(item, listing.title), key=len, reverse=True):
        named = re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", left)
        if named is not None:
            left = f"{left[: named.start()]}|{left[named.end() :]}"
            texts.append(value)
            yield f"click[{value}]"
    is_affordable = listing.costs_at_most(wish.limit)
    num_told = _num_told(wish, " ".join(texts)) if is_affordable else 0
    return num_told, is_affordable and num_told == len(wish.words)


def _wish_of(observation: str) -> _Wish:
    instruction = observation.split(f"Instruction:{_SEPARATOR}")[1].split(_SEPARATOR, maxsplit=1)[0]
    limit = _LIMIT.search(instruction)
    wanted = instruction[: limit.start()] if limit is not None else instruction
    words = frozenset(words_of(wanted)) - _FILLER
    return _Wish(instruction=wanted, words=words, limit=float(limit[1]) if limit is not None else float("inf"))


def _heading(wish: _Wish) -> str:
    """Nothing that stands in the instruction itself may count as told by a page."""
    limit = f", and price lower than {wish.limit:.2f} dollars" if wish.limit != float("inf") else ""
    return f"Instruction:{_SEPARATOR}{wish.instruction}{limit}{_SEPARATOR}"


def _num_told(wish: _Wish, text: str) -> int:
    return len(wish.words & set(words_of(text)))


def _listings(page: str) -> list[_Listing]:
    texts = page.split(_SEPARATOR)[4:]
    goods = [text for text in texts if text not in {"< Prev", "Next >"}]
    return [
        _Listing(asin=asin, title=title, price_tag=price_tag)
        for asin, title, price_tag in zip(goods[::3], goods[1::3], goods[2::3], strict=True)
    ]


def _values(item: str, title: str) -> list[str]:
    texts = item.split(_SEPARATOR)[4:]
    return [text for text in texts[: texts.index(title)] if text not in _CHOICES]
