"""The online profiler: what each task tag takes on each class of hardware (paper section 9).

Pure bookkeeping: cumulative counters of the generation workers and finished trajectories in, means over iterations
out. An iteration is what happens between two train steps. A mean weighs the newest iteration with 1 / n, and with
0.2 from the fifth on: right after the first one, and steady later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from rollart_hpc.errors import ConfigError
from rollart_hpc.types import TagUsage

_FILE = "profile.json"
_NEWEST_WEIGHT = 0.2
_AMOUNTS = ("requests", "prompt_tokens", "cached_tokens", "new_tokens", "prefill_s", "decode_s", "recompute_s")


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was generated, mean of an iteration; seconds are engine time as in `TagUsage`."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    new_tokens: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    recompute_s: float = 0.0

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens that were not in the prefix cache."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def seconds(self) -> float:
        """Engine time that is the tag's own: computing again is the fault of weight updates."""
        return self.prefill_s + self.decode_s


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One tag on one class of hardware."""

    tag: str
    hardware: str
    amounts: Amounts
    """Mean of all iterations."""
    when_there: Amounts
    """Mean of those iterations in which there was anything: what it takes here, also long after it left."""
    num_iterations: int
    """In which there was anything."""
    num_requests: int
    """In all."""


class TagPace(msgspec.Struct, frozen=True, kw_only=True):
    """The trajectories of one tag, which are played beside the engines."""

    tag: str
    trajectories: float
    """Of an iteration in which there were any."""
    turns: float
    """A trajectory, as the next two."""
    environment_s: float
    """Wall time of resets and steps."""
    reward_s: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured, for the advisor and for people."""

    num_iterations: int = 0
    speeds: list[Speed] = []
    paces: list[TagPace] = []

    def work(self, tag: str) -> Amounts:
        """Of an iteration, on all hardware together."""
        return _plus(speed.amounts for speed in self.speeds if speed.tag == tag)


class Profiler:
    """Collects one iteration after the other."""

    def __init__(self, before: Profile | None = None) -> None:
        """``before`` is what an earlier attempt of the run measured."""
        before = before or Profile()
        self._num_iterations = before.num_iterations
        self._speeds = {(speed.tag, speed.hardware): speed for speed in before.speeds}
        self._paces = {pace.tag: pace for pace in before.paces}
        self._counters: dict[tuple[str, str], TagUsage] = {}
        """The newest of each worker process by tag."""
        self._newest: defaultdict[tuple[str, str], Amounts] = defaultdict(Amounts)
        self._played: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])

    def take_usage(self, incarnation: str, hardware: str, usage: Mapping[str, TagUsage]) -> None:
        """What a worker process did since it began, by tag; a process that was started again is another one."""
        for tag, now in usage.items():
            before = self._counters.get((incarnation, tag), TagUsage())
            if now.num_requests < before.num_requests:
                before = TagUsage()
            self._counters[incarnation, tag] = now
            self._newest[tag, hardware] = _plus((self._newest[tag, hardware], _difference(now, before)))

    def take_trajectory(self, tag: str, *, num_turns: int, environment_s: float, reward_s: float) -> None:
        """A trajectory that was played to its end."""
        for index, value in enumerate((1, num_turns, environment_s, reward_s)):
            self._played[tag][index] += value

    def end_iteration(self) -> bool:
        """Takes what came since the last one into the means; an iteration without generation is none, as in a replay.

        Returns:
            Whether it was one.
        """
        if not any(amounts.requests for amounts in self._newest.values()):
            return False
        self._num_iterations += 1
        weight = _weight(self._num_iterations)
        for key in {**self._speeds, **self._newest}:
            self._speeds[key] = self._after(key, self._newest.get(key, Amounts()), weight)
        for tag, (trajectories, turns, environment_s, reward_s) in self._played.items():
            before = self._paces.get(tag)
            played = TagPace(
                tag=tag,
                trajectories=trajectories,
                turns=turns / trajectories,
                environment_s=environment_s / trajectories,
                reward_s=reward_s / trajectories,
            )
            self._paces[tag] = played if before is None else _mean_pace(before, played, weight)
        self._newest.clear()
        self._played.clear()
        return True

    def profile(self) -> Profile:
        """All means so far."""
        return Profile(
            num_iterations=self._num_iterations,
            speeds=[speed for _, speed in sorted(self._speeds.items())],
            paces=[pace for _, pace in sorted(self._paces.items())],
        )

    def _after(self, key: tuple[str, str], newest: Amounts, weight: float) -> Speed:
        tag, hardware = key
        before = self._speeds.get(key)
        amounts = _mean(before.amounts if before else Amounts(), newest, weight)
        if not newest.requests:
            return msgspec.structs.replace(self._speeds[key], amounts=amounts)
        num_iterations = 1 + (before.num_iterations if before else 0)
        return Speed(
            tag=tag,
            hardware=hardware,
            amounts=amounts,
            when_there=_mean(before.when_there if before else Amounts(), newest, _weight(num_iterations)),
            num_iterations=num_iterations,
            num_requests=int(newest.requests) + (before.num_requests if before else 0),
        )


def write_profile(run_directory: Path, profile: Profile) -> None:
    """Replaces RUN/profile.json in one move.

    Raises:
        OSError: the disk did not take it; the one before is still there.
    """
    temporary = run_directory / f".{_FILE}"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(profile)))
    temporary.replace(run_directory / _FILE)


def read_profile(run_directory: Path) -> Profile | None:
    """The newest profile of a run; None when there is none yet.

    Raises:
        ConfigError: the file is something else.
    """
    path = run_directory / _FILE
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not the profile of a run: {error}; remove it to measure anew") from error


def _weight(num_iterations: int) -> float:
    """Of the newest of so many iterations."""
    return max(_NEWEST_WEIGHT, 1 / num_iterations)


def _difference(now: TagUsage, before: TagUsage) -> Amounts:
    return Amounts(
        requests=now.num_requests - before.num_requests,
        prompt_tokens=now.num_prompt_tokens - before.num_prompt_tokens,
        cached_tokens=now.num_cached_tokens - before.num_cached_tokens,
        new_tokens=now.num_new_tokens - before.num_new_tokens,
        prefill_s=now.prefill_s - before.prefill_s,
        decode_s=now.decode_s - before.decode_s,
        recompute_s=now.recompute_s - before.recompute_s,
    )


def _plus(several: Iterable[Amounts]) -> Amounts:
    terms = list(several)
    return Amounts(**{name: sum(getattr(one, name) for one in terms) for name in _AMOUNTS})


def _mean(before: Amounts, newest: Amounts, weight: float) -> Amounts:
    return Amounts(**{name: (1 - weight) * getattr(before, name) + weight * getattr(newest, name) for name in _AMOUNTS})


def _mean_pace(before: TagPace, newest: TagPace, weight: float) -> TagPace:
    def mean(name: str) -> float:
        return (1 - weight) * getattr(before, name) + weight * getattr(newest, name)

    return TagPace(
        tag=newest.tag,
        trajectories=mean("trajectories"),
        turns=mean("turns"),
        environment_s=mean("environment_s"),
        reward_s=mean("reward_s"),
    )
