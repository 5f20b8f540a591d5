"""From declarations and live workers to bindings: pure functions (paper section 5.2, resource binding).

Generation is bound by tag. The profiler's choice wins over the config's `[affinity]`, and that over the ``hw_mapping``
of a worker class; within each a tag's own entry wins over ``default``. A class without a live worker is replaced by
whatever is alive, at once, and serves again when it is back. The other roles are where the pools put them; a reward
with a URL is serverless, and its fallback is the local pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from rollart_hpc.bus.membership import Member
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.resource_plane.records import DEFAULT_TAG, Binding
from rollart_hpc.types import Role

SERVERLESS = "serverless"
"""The class of what runs behind a URL."""
ByTag = Mapping[str, Binding]
NO_BINDINGS: ByTag = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What somebody declares of generation."""

    hardware: Mapping[str, str]
    """Class by tag."""
    source: str
    """Who, with ``{tag}`` for the key: ``affinity.{tag}``."""
    reason: str = ""
    """Why, where a reason was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """All that is asked of the bindings of a run."""

    tags: Sequence[str]
    """Of generation, with the default's."""
    generation: Sequence[Declared]
    """The strongest first."""
    pools: Mapping[Role, Mapping[str, str]]
    """Hardware class by pool, of the pools that have workers of a role."""
    serverless: Mapping[str, str]
    """By task whose reward is computed behind a URL, who says so."""

    @staticmethod
    def of(config: RunConfig, generation: Sequence[Declared], serverless: Mapping[str, str]) -> Demands:
        """Those of a run; what worker classes declare comes from elsewhere."""
        tags = dict.fromkeys(config.tag_of(name) for name in config.tasks)
        return Demands(
            tags=list({**tags, DEFAULT_TAG: None}),
            generation=generation,
            pools={
                role: {name: pool.hardware for name, pool in config.pools.items() if getattr(pool, str(role))}
                for role in Role
            },
            serverless=serverless,
        )


def bind(
    demands: Demands,
    members: Iterable[Member],
    before: Mapping[Role, ByTag] = MappingProxyType({}),
    *,
    known: Collection[str] = (),
    at: float,
) -> dict[Role, dict[str, Binding]]:
    """The bindings of every role by tag; one that stays as it was keeps its time and reason.

    Args:
        demands: what is asked for.
        members: the live ones.
        before: the bindings until now.
        known: classes of which a generation worker was alive at some time.
        at: now, seconds since the epoch.
    """
    staying = [member for member in members if not member.leaving]
    alive = {role: _classes(member for member in staying if member.role == role) for role in Role}
    after: dict[Role, dict[str, Binding]] = {}
    for role in Role:
        found = {DEFAULT_TAG: _by_pool(role, demands.pools[role], alive[role], at)}
        if role is Role.ACTOR_GEN:
            found = {tag: _by_tag(tag, demands.generation, alive[role], at) for tag in demands.tags}
        if role is Role.REWARD:
            found |= {task: _serverless(task, source, alive[role], at) for task, source in demands.serverless.items()}
        former = before.get(role, NO_BINDINGS)
        after[role] = {tag: _follow(former.get(tag), binding, known) for tag, binding in found.items()}
    return after


def changes(before: Mapping[Role, ByTag], after: Mapping[Role, ByTag]) -> list[Binding]:
    """The bindings that are new or others than before."""
    return [
        binding
        for role, by_tag in after.items()
        for tag, binding in by_tag.items()
        if before.get(role, NO_BINDINGS).get(tag) != binding
    ]


def asked_for(declarations: Iterable[Declared], tag: str) -> tuple[str, str, str]:
    """What is asked for under a tag: hardware class, who asks and why; empty where nothing is declared."""
    for declared in declarations:
        for key in (tag, DEFAULT_TAG):
            if key in declared.hardware:
                return declared.hardware[key], declared.source.format(tag=key), declared.reason
    return "", "", ""


def _by_tag(tag: str, declarations: Sequence[Declared], alive: Sequence[str], at: float) -> Binding:
    preferred, source, why = asked_for(declarations, tag)
    if not alive:
        hardware, reason = "", f"no {Role.ACTOR_GEN} worker is alive"
    elif preferred in alive:
        hardware, reason = preferred, f"{source} asks for {preferred}{f': {why}' if why else ''}"
    else:
        hardware = alive[0] if len(alive) == 1 else ""
        lack = f"{preferred} has no live {Role.ACTOR_GEN} worker" if preferred else "nothing is declared"
        reason = f"{lack}; {_serve(alive)}"
    return Binding(
        role=Role.ACTOR_GEN, tag=tag, preferred=preferred, source=source, hardware=hardware, reason=reason, at=at
    )


def _by_pool(role: Role, pools: Mapping[str, str], alive: Sequence[str], at: float) -> Binding:
    classes = list(dict.fromkeys(pools.values()))
    have = "has" if len(pools) == 1 else "have"
    placed = f"{' and '.join(f'pools.{name}' for name in pools)} {have} the {role} workers"
    return Binding(
        role=role,
        tag=DEFAULT_TAG,
        preferred=classes[0] if len(classes) == 1 else "",
        source="pools",
        hardware=alive[0] if len(alive) == 1 else "",
        reason=placed if alive else f"no {role} worker is alive",
        at=at,
    )


def _serverless(task: str, source: str, alive: Sequence[str], at: float) -> Binding:
    fallback = (
        f"{' and '.join(alive)} when it fails" if alive else f"no {Role.REWARD} worker is alive for when it fails"
    )
    return Binding(
        role=Role.REWARD,
        tag=task,
        preferred=SERVERLESS,
        source=source,
        hardware=SERVERLESS,
        reason=f"{source} is called; {fallback}",
        at=at,
    )


def _follow(before: Binding | None, after: Binding, known: Collection[str]) -> Binding:
    """The new binding in view of the one before."""
    if before is None:
        return after
    serves_as_asked = after.role is Role.ACTOR_GEN and after.hardware == after.preferred != ""
    is_same = (before.preferred, before.source, before.hardware) == (after.preferred, after.source, after.hardware)
    if is_same and (serves_as_asked or before.reason == after.reason):
        return before
    was_away = before.preferred == after.preferred != before.hardware
    if serves_as_asked and was_away and after.hardware in known:
        return msgspec.structs.replace(after, reason=f"{after.hardware} is back; {after.source} asks for it")
    return after


def _classes(members: Iterable[Member]) -> list[str]:
    return sorted({member.hardware for member in members})


def _serve(alive: Sequence[str]) -> str:
    return f"{' and '.join(alive)} {'serves' if len(alive) == 1 else 'serve'}"
