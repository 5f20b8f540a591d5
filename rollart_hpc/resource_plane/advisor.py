"""The better mapping of tags to hardware classes, and what it would gain: pure functions (paper section 9)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from rollart_hpc.resource_plane.predictions import Mapped, Situation

_ALL_OF_SO_MANY = 4096
"""Mappings that are all looked at; of more, those that single moves and swaps lead to."""

MappingKey = tuple[tuple[str, str], ...]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The best mapping that was found."""

    mapping: dict[str, str]
    """Hardware class by tag; a tag that is not there is served by any."""
    gain: float
    """Share by which it shortens an iteration's generation; 0 for the mapping that is."""
    expected_s: dict[str, float]
    """Seconds that each worker of a class would be busy in an iteration, by class."""
    current_s: dict[str, float]
    """As it is now."""
    why: str
    """In words, with what it goes by."""


def key_of(mapped: Mapped) -> MappingKey:
    """A mapping as one value."""
    return tuple(sorted(mapped.items()))


def advise(
    situation: Situation,
    current: Mapped,
    *,
    declared: Mapped | None = None,
    excluded: Collection[MappingKey] = (),
) -> Advice:
    """The mapping with the shortest time; of equal ones the least work in all, then the fewest changes.

    A tag whose class has no live worker stays as it is: others serve it meanwhile.

    Args:
        situation: what was measured, and where work can go.
        current: the mapping that is.
        declared: one more to look at, which may leave tags to any class.
        excluded: mappings that are not to be taken.
    """
    free = [tag for tag in situation.tags if situation.costs[tag] and _may_move(situation, current.get(tag))]
    now = _rank(situation, current, current)
    candidates = [current]
    if declared is not None and all(declared.get(tag) == current.get(tag) or tag in free for tag in situation.tags):
        candidates.append(declared)
    choices = [sorted(situation.costs[tag]) for tag in free]
    if _num_mappings(choices) <= _ALL_OF_SO_MANY:
        candidates += [{**current, **dict(zip(free, chosen, strict=True))} for chosen in itertools.product(*choices)]
    else:
        candidates += _climb(situation, current, dict(zip(free, choices, strict=True)), excluded)
    allowed = [one for one in candidates if key_of(one) == key_of(current) or key_of(one) not in excluded]
    best = dict(min(allowed, key=lambda one: _rank(situation, one, current)))
    return Advice(
        mapping=best,
        gain=0.0 if now.time_s <= 0 else 1 - _rank(situation, best, current).time_s / now.time_s,
        expected_s=situation.loads(best),
        current_s=situation.loads(current),
        why=_why(situation, current, best),
    )


def describe(advice: Advice, current: Mapped) -> str:
    """One line for people: what to move, and what it gains."""
    moves = [f"{tag} on {advice.mapping.get(tag, 'any')}" for tag in _moved(current, advice.mapping)]
    return f"{', '.join(moves)}: generation {advice.gain:.0%} shorter" if moves else "the mapping is the best one"


class _Rank(NamedTuple):
    time_s: float
    work_s: float
    """Engine time in all."""
    num_changes: int
    key: MappingKey


def _rank(situation: Situation, mapped: Mapped, current: Mapped) -> _Rank:
    loads = situation.loads(mapped)
    work_s = sum(load * situation.workers[name] for name, load in loads.items())
    return _Rank(
        _rounded(max(loads.values(), default=0.0)), _rounded(work_s), len(_moved(current, mapped)), key_of(mapped)
    )


def _rounded(seconds: float) -> float:
    """Without the last digits, in which sums of the same numbers in another order differ."""
    return float(f"{seconds:.9g}")


def _may_move(situation: Situation, hardware: str | None) -> bool:
    return hardware is None or situation.workers.get(hardware, 0) > 0


def _num_mappings(choices: list[list[str]]) -> int:
    total = 1
    for chosen in choices:
        total *= len(chosen)
    return total


def _climb(
    situation: Situation, current: Mapped, choices: Mapping[str, list[str]], excluded: Collection[MappingKey]
) -> list[Mapped]:
    """Mappings on the way to one that no single move or swap makes better."""
    start = {tag: current.get(tag, min(choices[tag], key=lambda n: situation.costs[tag][n].seconds)) for tag in choices}
    way: list[Mapped] = [{**current, **start}]
    while True:
        here = way[-1]
        steps = [one for one in _neighbours(here, choices) if key_of(one) not in excluded]
        best = min(steps, key=lambda one: _rank(situation, one, current), default=here)
        if _rank(situation, best, current) >= _rank(situation, here, current):
            return way
        way.append(best)


def _neighbours(mapped: Mapped, choices: Mapping[str, list[str]]) -> Iterator[Mapped]:
    for tag, classes in choices.items():
        yield from ({**mapped, tag: name} for name in classes if name != mapped[tag])
    for one, other in itertools.combinations(choices, 2):
        if mapped[one] != mapped[other] and mapped[one] in choices[other] and mapped[other] in choices[one]:
            yield {**mapped, one: mapped[other], other: mapped[one]}


def _moved(before: Mapped, after: Mapped) -> list[str]:
    return sorted(tag for tag in {**before, **after} if before.get(tag) != after.get(tag))


def _why(situation: Situation, current: Mapped, best: Mapped) -> str:
    return "; ".join(
        f"{tag}: {_seconds(situation, tag, best.get(tag))} instead of {_seconds(situation, tag, current.get(tag))}"
        for tag in _moved(current, best)
    )


def _seconds(situation: Situation, tag: str, hardware: str | None) -> str:
    cost = situation.costs.get(tag, {}).get(hardware or "")
    if cost is None:
        return hardware or "any class"
    basis = "measured" if cost.measured_on == hardware else f"by what it took on {cost.measured_on}"
    return f"{cost.seconds:.2g} s on {hardware} ({basis})"
