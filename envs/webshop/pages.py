"""The pages of the shop: what each shows and where its links lead.

    search ── search[...] ──▶ results ── an ASIN ──▶ item ── Description, Features, Reviews ──▶ detail
       ▲                     ▲   │ < Prev, Next >     │  ▲ └─ a value: the same item with it chosen  │
       └── Back to Search ───┼───┴────────────────────┤  └───────────────── < Prev ────────────────┘
                             └──────── < Prev ────────┘ Buy Now ──▶ done

Invariants: pages are values, a link makes a new one; chosen values live on the item's page alone, so whoever leaves
it for results or search chooses anew. A link's key is its text, lower-case with single spaces; where texts collide,
buttons go before values, and a value of a later choice before one of an earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rollart_hpc.envs.webshop.actions import as_typed
from rollart_hpc.envs.webshop.catalogue import Product

RESULTS_PER_PAGE = 10

Links: TypeAlias = "Mapping[str, Callable[[], Page]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """Where a shopper begins. Its one button is pressed by a search, not by a click."""

    name = "search"

    def texts(self) -> list[str]:
        """Below the instruction."""
        return ["Search"]

    def links(self) -> Links:
        """None."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsPage:
    """Ten of the hits of a search."""

    hits: tuple[Product, ...]
    number: int = 1
    name = "results"

    def texts(self) -> list[str]:
        """Buttons, then ASIN, title and price of each product."""
        texts = ["Back to Search", f"Page {self.number} (Total results: {len(self.hits)})"]
        texts += ["< Prev"] * self._has_previous() + ["Next >"] * self._has_next()
        for product in self._shown():
            texts += [product.asin, product.title, product.price_tag]
        return texts

    def links(self) -> Links:
        """Buttons and products."""
        links: dict[str, Callable[[], Page]] = {"back to search": SearchPage}
        if self._has_previous():
            links["< prev"] = lambda: replace(self, number=self.number - 1)
        if self._has_next():
            links["next >"] = lambda: replace(self, number=self.number + 1)
        for product in self._shown():
            links[as_typed(product.asin)] = lambda product=product: ItemPage(product=product, results=self)
        return links

    def _shown(self) -> tuple[Product, ...]:
        return self.hits[(self.number - 1) * RESULTS_PER_PAGE : self.number * RESULTS_PER_PAGE]

    def _has_previous(self) -> bool:
        return self.number > 1

    def _has_next(self) -> bool:
        return self.number * RESULTS_PER_PAGE < len(self.hits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    """One product."""

    product: Product
    results: ResultsPage
    chosen: Mapping[str, str] = field(default_factory=dict[str, str])
    """Value by the name of the choice."""
    name = "item"

    def texts(self) -> list[str]:
        """Choices with their values, title, price, rating and buttons. What is chosen is not shown, as in WebShop."""
        texts = ["Back to Search", "< Prev"]
        for choice, values in self.product.options.items():
            texts += [choice, *values]
        texts += [self.product.title, f"Price: {self.product.price_tag}", f"Rating: {self.product.rating}"]
        return [*texts, "Description", "Features", "Reviews", "Buy Now"]

    def links(self) -> Links:
        """Buttons and values."""
        buttons: dict[str, Callable[[], Page]] = {
            "back to search": SearchPage,
            "< prev": lambda: self.results,
            "description": lambda: DetailPage(item=self, detail="description"),
            "features": lambda: DetailPage(item=self, detail="features"),
            "reviews": lambda: DetailPage(item=self, detail="reviews"),
            "buy now": lambda: DonePage(product=self.product, chosen=self.chosen),
        }
        values: dict[str, Callable[[], Page]] = {
            as_typed(value): lambda choice=choice, value=value: self._choosing(choice, value)
            for choice, values in self.product.options.items()
            for value in values
        }
        return {**buttons, **values, **buttons}

    def _choosing(self, choice: str, value: str) -> ItemPage:
        return replace(self, chosen={**self.chosen, choice: value})


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailPage:
    """Description, features or reviews of a product."""

    item: ItemPage
    detail: str

    @property
    def name(self) -> str:
        """As its button."""
        return self.detail

    def texts(self) -> list[str]:
        """Buttons, then the detail."""
        return ["Back to Search", "< Prev", *self._details()]

    def links(self) -> Links:
        """Back to the item, with what is chosen, or to the search."""
        return {"back to search": SearchPage, "< prev": lambda: self.item}

    def _details(self) -> list[str]:
        product = self.item.product
        if self.detail == "description":
            return [product.description or "No Description"]
        if self.detail == "features":
            return list(product.features) or ["No Features"]
        reviews = [text for review in product.reviews for text in (f'"{review.title}"', review.score, review.body)]
        return [text for text in reviews if text] or ["No reviews found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DonePage:
    """After the purchase; nothing leads on."""

    product: Product
    chosen: Mapping[str, str]
    name = "done"

    def texts(self) -> list[str]:
        """Thanks; the score stands below them."""
        return ["Thank you for shopping with us!"]

    def links(self) -> Links:
        """None."""
        return {}


Page: TypeAlias = SearchPage | ResultsPage | ItemPage | DetailPage | DonePage
