"""WebShop's reward of a purchase (Yao et al., 2022): how much of what was asked for was bought.

    r_type * (attributes met + options met + [price <= limit]) / (attributes + options + 1)

Invariants: a pure function of the goal, the product and the chosen options; the score lies in [0, 1] and is exactly 1
only when all was met by a product of the right type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from rollart_hpc.envs.webshop.catalogue import LEVEL_MARK, Goal, Product
from rollart_hpc.envs.webshop.colours import first_colour

_SIMILAR = 85
_LATIN_1 = dict.fromkeys(range(0x80, 0x100))


class PurchaseScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of a purchase and what it is made of."""

    score: float
    r_type: float
    """1 for the same type of product, less for a related one, 0 for one that has nothing to do with it."""
    r_att: float | None
    """Share of the goal's attributes that are met; None where it has none."""
    r_option: float | None
    """Share of the goal's options that are met; None where it has none."""
    r_price: float
    """1 within the limit, else 0."""
    title_score: float
    """Share of the nouns in the wanted product's title that the bought one's has too."""


def score_purchase(*, bought: Product, chosen: Mapping[str, str], goal: Goal, wanted: Product) -> PurchaseScore:
    """Scores a purchase.

    Args:
        bought: the product.
        chosen: the value by the name of the choice; what was not chosen is absent.
        goal: what was asked for.
        wanted: the product of the goal's ``asin``.
    """
    title_score = _title_score(bought, wanted)
    r_type = _type_reward(bought, wanted, title_score)
    num_attributes = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    num_options = _num_options(goal.options, chosen.values())
    r_price = float(goal.price_limit is None or bought.price <= goal.price_limit)
    num_wishes = len(goal.attributes) + len(goal.options) + 1
    return PurchaseScore(
        score=r_type * (num_attributes + num_options + r_price) / num_wishes,
        r_type=r_type,
        r_att=num_attributes / len(goal.attributes) if goal.attributes else None,
        r_option=num_options / len(goal.options) if goal.options else None,
        r_price=r_price,
        title_score=title_score,
    )


def _title_score(bought: Product, wanted: Product) -> float:
    if not wanted.nouns:
        return 0.2
    return len(set(bought.nouns) & set(wanted.nouns)) / len(wanted.nouns)


def _type_reward(bought: Product, wanted: Product, title_score: float) -> float:
    if title_score == 0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    shared_levels = _levels(bought) & _levels(wanted)
    is_same_type = bought.query == wanted.query or len(shared_levels) >= 2 or title_score > 0.2
    return 1.0 if is_same_type else 0.5


def _levels(product: Product) -> set[str]:
    return {level.strip() for level in product.product_category.split(LEVEL_MARK)}


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(_is_similar(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.features), product.description)
    return any(attribute in text.lower() for text in texts)


def _num_options(wanted: Iterable[str], chosen: Iterable[str]) -> int:
    chosen = [first_colour(value) for value in chosen]
    return sum(any(_is_similar(value, first_colour(wish)) for value in chosen) for wish in wanted)


def _is_similar(left: str, right: str) -> bool:
    """As thefuzz compares: on words without accents and punctuation, the ratio a whole number."""
    return round(token_set_ratio(left, right, processor=_comparable)) > _SIMILAR


def _comparable(text: str) -> str:
    return default_process(text.translate(_LATIN_1))
