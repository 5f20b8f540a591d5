"""The online profiler at work (paper section 9).

Consumes the counters of the generation workers after each train step, and finished trajectories; produces
RUN/profile.json, the advice and, where the config lets it, the preferred mapping; waits for a step; woken by it. It
runs beside training: a worker that does not answer is measured at a later step, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nats.errors import Error as NatsError

from rollart_hpc.bus.membership import Member
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.declared_affinity import declared_affinity
from rollart_hpc.errors import ConfigError, RollartError
from rollart_hpc.observe.growing_file import free_space
from rollart_hpc.resource_plane.advisor import Advice, describe
from rollart_hpc.resource_plane.auto_affinity import AutoAffinity
from rollart_hpc.resource_plane.binding import asked_for
from rollart_hpc.resource_plane.hardware import hardware_classes
from rollart_hpc.resource_plane.predictions import Situation
from rollart_hpc.resource_plane.profile import Profile, Profiler, Speed, read_profile, write_profile
from rollart_hpc.types import TagUsage, Trajectory

_log = logging.getLogger(__name__)
_ANSWER_DEADLINE_S = 5.0

Prefer = Callable[[Mapping[str, str], str], None]
"""Takes a hardware class by tag, which holds over all declarations, and the reason; an empty mapping takes it back."""


class ProfilerService:
    """Measures once a step; `run` must be running."""

    def __init__(
        self, config: RunConfig, run_directory: Path, generators: Cluster[ActorGenCls], *, prefer: Prefer
    ) -> None:
        """Goes on from the profile that an earlier attempt left."""
        self._config, self._directory, self._generators, self._prefer = config, run_directory, generators, prefer
        self._mode = config.profiler.affinity
        self._tags = sorted({config.tag_of(task) for task in config.tasks})
        self._classes = {pool.hardware for pool in config.pools.values() if pool.actor_gen}
        self._profiler = Profiler(_profile_of(run_directory))
        declared = {tag: asked_for(declared_affinity(config), tag)[0] for tag in self._tags}
        self._affinity = AutoAffinity(
            {tag: hardware for tag, hardware in declared.items() if hardware},
            min_gain=config.profiler.min_gain,
            settle_steps=config.profiler.settle_steps,
        )
        self._advice: Advice | None = None
        self._stepped = asyncio.Event()

    def finished(self, trajectory: Trajectory) -> None:
        """Counts a trajectory that came back."""
        if trajectory.failure:
            return
        self._profiler.take_trajectory(
            self._config.tag_of(trajectory.task),
            num_turns=trajectory.num_turns,
            environment_s=trajectory.seconds.get("reset", 0.0) + trajectory.seconds.get("step", 0.0),
            reward_s=trajectory.seconds.get("reward", 0.0),
        )

    def stepped(self) -> None:
        """A train step has ended; returns at once."""
        self._stepped.set()

    def as_record(self) -> dict[str, Any]:
        """What a step's record says: nothing while nothing is done with the measurements."""
        if self._mode == "static":
            return {}
        gain = self._advice.gain if self._advice else 0.0
        return {"affinity": {"advice": self._advised(), "gain": gain, "changes": self._affinity.num_changes}}

    def as_summary(self) -> dict[str, Any]:
        """The newest profile in short, and the mapping that holds."""
        profile = self._profiler.profile()
        return {
            "profile": {tag: _compact(profile, tag) for tag in self._tags},
            "affinity": {
                "mode": self._mode,
                "mapping": {tag: self._affinity.mapping.get(tag, "any") for tag in self._tags},
                "changes": self._affinity.num_changes,
                "advice": self._advised(),
            },
        }

    async def run(self) -> None:
        """Serves until cancelled."""
        while True:
            await self._stepped.wait()
            self._stepped.clear()
            await self._measure()

    async def _measure(self) -> None:
        members = self._generators.members()
        answers = await asyncio.gather(*(self._usage_of(member) for member in members))
        for member, usage in zip(members, answers, strict=True):
            self._profiler.take_usage(member.incarnation, member.hardware, usage)
        if not self._profiler.end_iteration():
            return
        profile = self._profiler.profile()
        self._act(self._situation(profile))
        await asyncio.to_thread(_write, self._directory, profile)

    async def _usage_of(self, member: Member) -> dict[str, TagUsage]:
        try:
            async with asyncio.timeout(_ANSWER_DEADLINE_S):
                return await self._generators.call_one(member.member_id, ActorGenCls.usage)
        except (RollartError, NatsError, TimeoutError) as error:
            _log.info("%s is measured at a later step: %r", member.member_id, error)
            return {}

    def _situation(self, profile: Profile) -> Situation:
        live = (member.hardware for member in self._generators.members() if not member.leaving)
        return Situation(
            profile=profile,
            workers=Counter(hardware for hardware in live if hardware in self._classes),
            hardware=hardware_classes(self._config),
        )

    def _act(self, situation: Situation) -> None:
        if self._mode == "static":
            return
        before = self._affinity.mapping
        taken = self._affinity.decide(situation) if self._mode == "auto" else None
        if taken is not None:
            reason = f"{describe(taken, before)} ({taken.why})"
            _log.info("from now on %s", reason)
            self._prefer({} if self._affinity.is_declared else self._affinity.mapping, reason)
        self._advice = self._affinity.advise(situation)

    def _advised(self) -> str:
        """The better mapping in words; empty where none is better by enough."""
        if self._advice is None or self._advice.gain < self._config.profiler.min_gain:
            return ""
        return describe(self._advice, self._affinity.mapping)


def _profile_of(run_directory: Path) -> Profile | None:
    try:
        return read_profile(run_directory)
    except ConfigError as error:
        _log.warning("%s; everything is measured anew", error)
        return None


def _write(run_directory: Path, profile: Profile) -> None:
    """A disk that does not take it costs no more than a warning."""
    try:
        write_profile(run_directory, profile)
    except OSError as error:
        _log.warning("the profile CANNOT BE WRITTEN: %s; %s", error.strerror, free_space(run_directory))


def _compact(profile: Profile, tag: str) -> dict[str, Any]:
    paces = [pace for pace in profile.paces if pace.tag == tag]
    return {
        **{name: getattr(pace, name) for pace in paces for name in ("turns", "environment_s", "reward_s")},
        "hardware": {speed.hardware: _amounts(speed) for speed in profile.speeds if speed.tag == tag},
    }


def _amounts(speed: Speed) -> dict[str, float]:
    amounts = speed.amounts
    return {
        "requests": amounts.requests,
        "prompt_tokens": amounts.prompt_tokens,
        "cached_tokens": amounts.cached_tokens,
        "new_tokens": amounts.new_tokens,
        "prefill_s": amounts.prefill_s,
        "decode_s": amounts.decode_s,
        "recompute_s": amounts.recompute_s,
    }
