"""WebShop (Yao et al., 2022): find, choose and buy what an instruction asks for, on the text pages of a shop.

An action is the last ``search[words]`` or ``click[text]`` of the policy's text: `actions`. What it leads to is the
page's affair: `pages`. The only reward is that of Buy Now: `reward_rules`. What the page does not offer costs the turn
and changes nothing. The number of turns is bounded by the run's config, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from rollart_hpc.envs.webshop.actions import Action, parse_action
from rollart_hpc.envs.webshop.catalogue import SHIPPED, Goal, load_catalogue
from rollart_hpc.envs.webshop.pages import DonePage, Page, ResultsPage, SearchPage
from rollart_hpc.envs.webshop.reward_rules import PurchaseScore, score_purchase
from rollart_hpc.interfaces import EnvironmentProperties

HOW_TO_ACT = (
    "You are shopping in a web shop. Buy the product that the instruction asks for, with the options that it names, "
    "within its price. Each turn write one action: search[words] looks for products, click[text] presses a button, "
    "opens the product with that code or chooses that option, where the page shows that text. click[Buy Now] ends the "
    "shopping.\n\n"
)
MOST_HITS = 50
_SEPARATOR = " [SEP] "


class WebShop:
    """One shopper; a pure function of the catalogue, the goal and the actions.

    Args:
        catalogue: folder of a catalogue; that of 1,000 products which ships when absent.
        goals: the goals that seeds choose from, as ``[first, end]`` in the catalogue's order; all when absent.
        instructions: text before the first page.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(light=True, replayable=True)

    def __init__(
        self, *, catalogue: str | None = None, goals: Sequence[int] | None = None, instructions: str = HOW_TO_ACT
    ) -> None:
        self._catalogue = load_catalogue(SHIPPED if catalogue is None else Path(catalogue))
        num_goals = len(self._catalogue.goals)
        first, end = _range_of(goals, num_goals)
        self._goals = self._catalogue.goals[first:end]
        self._instructions = instructions

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Opens the search page.

        Args:
            seed: chooses the goal where the task names none: goal number ``seed``, counted round and round.
            task: the fields of a goal, or ``goal``, the number of one in the whole catalogue, or nothing.

        Raises:
            ValueError: the task is none of these, or its product is not in the catalogue.
        """
        self._goal = self._goal_of(task) if task else self._goals[seed % len(self._goals)]
        self._page: Page = SearchPage()
        self._score: PurchaseScore | None = None
        self._turns = self._invalid_turns = 0
        return self._instructions + self._text(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Follows the one action of the text, or none. The reward is the purchase's score, at the purchase."""
        self._turns += 1
        before, parsed = self._page, parse_action(action)
        page = self._page_after(parsed) if parsed is not None else None
        if page is None:
            self._invalid_turns += 1
        else:
            self._page = page
        reward = 0.0
        if isinstance(self._page, DonePage) and not isinstance(before, DonePage):
            self._score = self._scored(self._page)
            reward = self._score.score
        return self._text(), reward, isinstance(self._page, DonePage), False, self._info()

    def close(self) -> None:
        """Nothing to free: the catalogue is the process's."""

    def _page_after(self, action: Action) -> Page | None:
        if action.verb == "click":
            link = self._page.links().get(action.argument)
            return link() if link is not None else None
        # As in WebShop, a search works from any page, whether or not that one shows the search bar.
        is_over = isinstance(self._page, DonePage)
        return None if is_over else ResultsPage(hits=self._catalogue.search(action.argument, MOST_HITS))

    def _scored(self, page: DonePage) -> PurchaseScore:
        wanted = self._catalogue.by_asin[self._goal.asin]
        return score_purchase(bought=page.product, chosen=page.chosen, goal=self._goal, wanted=wanted)

    def _goal_of(self, task: Mapping[str, Any]) -> Goal:
        fields = ", ".join(Goal.__struct_fields__)
        if set(task) == {"goal"}:
            number, num_goals = task["goal"], len(self._catalogue.goals)
            if type(number) is not int or not 0 <= number < num_goals:
                raise ValueError(f"goal of the task is {number!r}; expected a number from 0 to {num_goals - 1}")
            return self._catalogue.goals[number]
        try:
            goal = msgspec.convert(dict(task), Goal)
        except msgspec.ValidationError as error:
            got = ", ".join(sorted(map(str, task)))
            raise ValueError(f"the task has the fields {got}: {error}; expected goal, or {fields}") from error
        if goal.asin not in self._catalogue.by_asin:
            raise ValueError(f"asin of the task is {goal.asin!r}; the catalogue has no such product")
        return goal

    def _text(self) -> str:
        if isinstance(self._page, DonePage):
            score = 0.0 if self._score is None else self._score.score
            return _SEPARATOR.join([*self._page.texts(), "Your score (min 0.0, max 1.0)", str(score)])
        title = ["WebShop"] if isinstance(self._page, SearchPage) else []
        return _SEPARATOR.join([*title, "Instruction:", self._goal.instruction, *self._page.texts()])

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {
            "available_actions": self._available_actions(),
            "page": self._page.name,
            "bought": isinstance(self._page, DonePage),
            "score": 0.0,
            "success": False,
            "turns": self._turns,
            "invalid_turns": self._invalid_turns,
        }
        if isinstance(self._page, DonePage) and self._score is not None:
            info |= {
                "score": self._score.score,
                "success": self._score.score == 1.0,
                "bought_asin": self._page.product.asin,
                "chosen": dict(self._page.chosen),
                "reward_details": msgspec.to_builtins(self._score),
            }
        return info

    def _available_actions(self) -> list[str]:
        """Texts of actions for players without a model; of all searches the one that is like the instruction."""
        if isinstance(self._page, SearchPage):
            return [f"search[{self._goal.instruction}]"]
        return [f"click[{text}]" for text in self._page.links()]


class LargeWebShop(WebShop):
    """The same in a child process that many instances share: for catalogues that take seconds to read."""

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(shares_process=True, replayable=True)


def _range_of(goals: Sequence[int] | None, num_goals: int) -> tuple[int, int]:
    if num_goals == 0:
        raise ValueError("the catalogue has no goals")
    if goals is None:
        return 0, num_goals
    if len(goals) != 2 or not 0 <= goals[0] < goals[1] <= num_goals:
        raise ValueError(f"goals is {list(goals)}; expected [first, end], 0 <= first < end <= {num_goals}")
    return goals[0], goals[1]
