"""``rollart-hpc bench environments``: many environments at once on one host, as long as you like.

Random policies play directly on an `EnvironmentHost`, with a pause where a model would think: no engine, no bus. It
shows whether memory, processes and files stay as they are, and what is left when the host has closed. The time runs
when all have begun and the warm-up is over. With ``--hung`` some environments hang in the second half of it, again and
again; the others' trajectories are compared with those of the first half.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from rollart_hpc.data_plane.environment_host import EnvironmentHost, EnvironmentSession
    from rollart_hpc.data_plane.environment_spec import EnvironmentSpec

_KINDS = {"Light": 16, "Shared": 16, "Waiting": 7, "Alone": 1}
"""Shares of what is played without a config."""
_SAMPLES = 60
_HUNG_KIND = "Shared"
_HANG_DEADLINE_S = 5.0
_START_DEADLINE_S = 600.0


@dataclass(slots=True)
class _Sample:
    at_s: float
    memory_mb: float
    """Of this process and all below it, shared pages in equal parts."""
    host_mb: float
    """Of this process alone."""
    processes: int
    files: int


@dataclass(slots=True)
class _Played:
    """What the players of one stage did."""

    trajectories_s: list[float] = field(default_factory=list[float])
    turns_ms: list[float] = field(default_factory=list[float])
    faults: dict[str, int] = field(default_factory=dict[str, int])


def bench_environments(
    config: Annotated[Path | None, typer.Argument(help="A run's TOML file: its tasks, in equal parts.")] = None,
    count: Annotated[int, typer.Option(help="Environments at once.", min=1)] = 1000,
    seconds: Annotated[float, typer.Option(help="Length of the measurement.", min=1.0)] = 60.0,
    warm_up: Annotated[float, typer.Option(help="Seconds of play before it, not measured.", min=0.0)] = 0.0,
    think: Annotated[float, typer.Option(help="Seconds between an observation and its action.", min=0.0)] = 0.5,
    hung: Annotated[int, typer.Option(help="Environments that hang in the second half.", min=0)] = 0,
    max_children: Annotated[int, typer.Option(help="Processes at most.", min=1)] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Plays many environments at once and watches memory, processes, files, and what one that hangs costs the others.

    Without CONFIG: light, shared, thread-safe and lone ones of our own. Exit code 1: something was left behind.
    """
    import asyncio

    from rollart_hpc.errors import ConfigError

    if config is not None and hung:
        raise ConfigError("--hung needs environments of our own, which hang when they are told; leave CONFIG out")
    specs = _configured(config) if config is not None else _of_our_own()
    result = asyncio.run(_measure(specs, count, warm_up, seconds, think, hung, max_children))
    if as_json:
        print(json.dumps(result))
    else:
        _print(result)
    if result["left_processes"] or result["left_files"]:
        raise typer.Exit(1)


def _configured(path: Path) -> dict[str, tuple[EnvironmentSpec, int]]:
    from rollart_hpc.config.load import load_config
    from rollart_hpc.data_plane.environment_spec import EnvironmentSpec

    config = load_config(path)
    config.node_settings().publish()
    return {name: (EnvironmentSpec.of_task(task), 1) for name, task in config.tasks.items()}


def _of_our_own() -> dict[str, tuple[EnvironmentSpec, int]]:
    from rollart_hpc.data_plane.environment_spec import EnvironmentSpec

    return {
        kind: (
            EnvironmentSpec(
                entry_point=f"rollart_hpc.cli.bench_kinds:{kind}",
                reset_timeout_s=60.0,
                step_timeout_s=_HANG_DEADLINE_S,
            ),
            share,
        )
        for kind, share in _KINDS.items()
    }


async def _measure(
    specs: dict[str, tuple[EnvironmentSpec, int]],
    count: int,
    warm_up: float,
    seconds: float,
    think: float,
    hung: int,
    max_children: int,
) -> dict[str, Any]:
    import asyncio

    from rollart_hpc.data_plane.environment_host import EnvironmentHost

    tasks = _tasks_of({name: share for name, (_, share) in specs.items()}, count)
    before = _sample(0.0)
    stages = [_Played()]
    samples: list[_Sample] = []
    host = EnvironmentHost({name: spec for name, (spec, _) in specs.items()}, max_children=max_children)
    async with host:
        all_begun = asyncio.Barrier(count + 1)
        begin = time.monotonic()
        players = [
            asyncio.create_task(_play_on(host, task, number, think, stages, all_begun))
            for number, task in enumerate(tasks)
        ]
        await _begun(all_begun, players)
        start_s = time.monotonic() - begin
        await asyncio.sleep(warm_up)
        begin = time.monotonic()
        stages.append(_Played())
        hanging: list[asyncio.Task[None]] = []
        while (at_s := time.monotonic() - begin) < seconds:
            if hung and not hanging and at_s >= seconds / 2:
                stages.append(_Played())
                hanging = [asyncio.create_task(_hang_on(host, number)) for number in range(hung)]
            samples.append(await asyncio.to_thread(_sample, at_s))
            await asyncio.sleep(min(seconds / _SAMPLES, seconds - at_s))
        for task in (*players, *hanging):
            task.cancel()
        await asyncio.wait([*players, *hanging])
        for task in players:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
    after = _sample(seconds)
    return {
        "count": count,
        "seconds": seconds,
        "kinds": {name: tasks.count(name) for name in specs},
        "start_s": round(start_s, 1),
        **_of_stage(stages[1]),
        **_compared(stages[1:]),
        **_steadiness(samples),
        "left_processes": after.processes - before.processes,
        "left_files": after.files - before.files,
    }


def _tasks_of(shares: dict[str, int], count: int) -> list[str]:
    """The task of each player, in the shares."""
    order = [name for name, share in shares.items() for _ in range(share)]
    return [order[number % len(order)] for number in range(count)]


async def _begun(all_begun: asyncio.Barrier, players: Sequence[asyncio.Task[None]]) -> None:
    """Returns when all play at the same time."""
    import asyncio

    from rollart_hpc.errors import WaitTimeout

    waiting = asyncio.create_task(all_begun.wait())
    await asyncio.wait([waiting, *players], timeout=_START_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        for player in players:
            if player.done():
                player.result()
        there = (
            f"{all_begun.n_waiting - 1} of {all_begun.parties - 1} environments (more than --max-children can hold?)"
        )
        raise WaitTimeout("all environments to begin", there, _START_DEADLINE_S)


async def _play_on(
    host: EnvironmentHost,
    task: str,
    number: int,
    think: float,
    stages: Sequence[_Played],
    all_begun: asyncio.Barrier,
) -> None:
    """One trajectory after the other; those that begin in one stage and end in another count in neither."""
    import asyncio
    import random

    from rollart_hpc.errors import EnvironmentFault

    async with host.open(task) as session:
        await session.reset(number)
        await all_begun.wait()
    await asyncio.sleep(random.uniform(0, think))
    seed = number
    while True:
        played, begin = stages[-1], time.monotonic()
        try:
            async with host.open(task) as session:
                turns_ms = await _episode(session, seed, think)
        except EnvironmentFault as fault:
            played.faults[fault.cause] = played.faults.get(fault.cause, 0) + 1
        else:
            if played is stages[-1]:
                played.trajectories_s.append(time.monotonic() - begin)
                played.turns_ms += turns_ms
        seed += 7919


async def _episode(session: EnvironmentSession, seed: int, think: float) -> list[float]:
    import asyncio

    from rollart_hpc.data_plane.environment_kit import RandomPolicy

    policy, turns_ms = RandomPolicy(seed), list[float]()
    state = await session.reset(seed)
    while not state.terminated and not state.truncated and len(turns_ms) < 30:
        await asyncio.sleep(think)
        begin = time.perf_counter()
        state = await session.step(policy.act(state.info))
        turns_ms.append((time.perf_counter() - begin) * 1e3)
    return turns_ms


async def _hang_on(host: EnvironmentHost, number: int) -> None:
    from rollart_hpc.cli.bench_kinds import HANG
    from rollart_hpc.errors import EnvironmentFault

    while True:
        try:
            async with host.open(_HUNG_KIND) as session:
                await session.reset(number)
                await session.step(HANG)
        except EnvironmentFault:
            continue


def _sample(at_s: float) -> _Sample:
    import os

    import psutil

    here = psutil.Process()
    memory = host = here.memory_full_info().pss
    processes = 1
    for process in here.children(recursive=True):
        try:
            memory += process.memory_full_info().pss
            processes += process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
    return _Sample(at_s, memory / 1e6, host / 1e6, processes, len(os.listdir("/proc/self/fd")))  # noqa: PTH208


def _of_stage(played: _Played) -> dict[str, Any]:
    import numpy as np

    trajectories, turns = np.asarray(played.trajectories_s), np.asarray(played.turns_ms)
    if not len(turns):
        return {"trajectories": 0, "faults": played.faults}
    return {
        "trajectories": len(trajectories),
        "turns": len(turns),
        "trajectory_p50_s": round(float(np.median(trajectories)), 4),
        "trajectory_p99_s": round(float(np.percentile(trajectories, 99)), 4),
        "turn_p50_ms": round(float(np.median(turns)), 3),
        "turn_p99_ms": round(float(np.percentile(turns, 99)), 3),
        "faults": played.faults,
    }


def _compared(stages: Sequence[_Played]) -> dict[str, Any]:
    """The stage in which some hang beside the one before."""
    if len(stages) == 1:
        return {}
    first, second = _of_stage(stages[0]), _of_stage(stages[1])
    change = second.get("trajectory_p50_s", 0.0) / first.get("trajectory_p50_s", 1.0) - 1
    return {"while_hung": second, "median_change": round(change, 4)}


def _steadiness(samples: Sequence[_Sample]) -> dict[str, Any]:
    import numpy as np

    found: dict[str, Any] = {}
    at_s = [sample.at_s for sample in samples]
    for name in ("memory_mb", "host_mb", "processes", "files"):
        values = [float(getattr(sample, name)) for sample in samples]
        found[name] = {"first": round(values[0], 1), "last": round(values[-1], 1), "most": round(max(values), 1)}
        if len(samples) > 2:
            found[name]["per_minute"] = round(float(np.polyfit(at_s, values, 1)[0]) * 60, 2)
    return found


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, value in result.items():
        shown = ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, shown or "none")
    Console(highlight=False).print(table)
