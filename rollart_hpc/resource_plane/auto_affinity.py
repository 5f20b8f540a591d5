"""When the better mapping is applied: a state machine without I/O (paper section 9).

    measuring ── the same better mapping in settle_steps iterations in a row ──▶ it is applied ──▶ resting
        ▲                                                                                            │
        └──────────────────────────────── settle_steps iterations ◀──────────────────────────────────┘

Invariants:
- A mapping is applied only when it promised `min_gain` in each of those iterations.
- What was predicted of a mapping is replaced by what is measured under it, so one that turns out worse is left again,
  for the mapping before or another one. A mapping that is left for one that was there before is not taken again while
  the situation is the same: its changes come to an end.
- The situation is another one when a class has another number of live workers, or when the prompt tokens or the new
  tokens of a tag in an iteration are more than 1.5 times as many, or as few, as at the last change.
"""

from __future__ import annotations

from rollart_hpc.resource_plane.advisor import Advice, MappingKey, advise, key_of
from rollart_hpc.resource_plane.predictions import Mapped, Situation

_A_LOT = 1.5


class AutoAffinity:
    """Decides once in each iteration."""

    def __init__(self, declared: Mapped, *, min_gain: float, settle_steps: int) -> None:
        """``declared`` is the mapping that holds while none was applied."""
        self._declared, self._min_gain, self._settle_steps = dict(declared), min_gain, settle_steps
        self.mapping: dict[str, str] = dict(declared)
        """What holds now."""
        self.num_changes = 0
        self._wanted: MappingKey | None = None
        self._num_wanted = 0
        self._num_resting = 0
        self._changed_in: Situation | None = None
        """That of the last change; None when the situation is another one, or there was no change."""
        self._been: set[MappingKey] = set()
        """The mappings that there were in it, but for the present one."""
        self._excluded: set[MappingKey] = set()
        """Those that were left for one that there was before."""

    @property
    def is_declared(self) -> bool:
        """Whether the mapping is the declared one."""
        return self.mapping == self._declared

    def advise(self, situation: Situation) -> Advice:
        """The best mapping that may be taken."""
        if self._changed_in is not None and _is_another(self._changed_in, situation):
            self._changed_in = None
            self._been.clear()
            self._excluded.clear()
        return advise(situation, self.mapping, declared=self._declared, excluded=self._excluded)

    def decide(self, situation: Situation) -> Advice | None:
        """The mapping to apply now, which holds from then on; None for no change. To be called once an iteration."""
        advice = self.advise(situation)
        if self._num_resting:
            self._num_resting -= 1
            return None
        wanted = key_of(advice.mapping) if advice.gain >= self._min_gain else None
        self._num_wanted = 0 if wanted is None else 1 + (self._num_wanted if wanted == self._wanted else 0)
        self._wanted = wanted
        if wanted is None or self._num_wanted < self._settle_steps:
            return None
        self._take(advice.mapping, situation)
        return advice

    def _take(self, mapping: Mapped, situation: Situation) -> None:
        if key_of(mapping) in self._been:
            self._excluded.add(key_of(self.mapping))
        self._been.add(key_of(self.mapping))
        self.mapping, self._changed_in = dict(mapping), situation
        self.num_changes += 1
        self._wanted, self._num_wanted, self._num_resting = None, 0, self._settle_steps


def _is_another(before: Situation, after: Situation) -> bool:
    if dict(before.workers) != dict(after.workers):
        return True
    tags = {*before.tags, *after.tags}
    return any(_differs_a_lot(_work(before, tag)[name], _work(after, tag)[name]) for tag in tags for name in (0, 1))


def _work(situation: Situation, tag: str) -> tuple[float, float]:
    work = situation.profile.work(tag)
    return work.prompt_tokens, work.new_tokens


def _differs_a_lot(before: float, after: float) -> bool:
    low, high = sorted((before, after))
    return high > _A_LOT * low
