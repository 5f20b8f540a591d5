"""``rollart-hpc env``: which environments there are, whether one keeps its promises, and one episode of it by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollart_hpc.cli.arguments import parse_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

    from rollart_hpc.data_plane.environment_kit import Report
    from rollart_hpc.data_plane.environment_spec import EnvironmentSpec
    from rollart_hpc.interfaces import EnvironmentProperties

app = typer.Typer(help="List, check and play environments.", no_args_is_help=True)

_EXAMPLE = "'{\"size\": 4}'"
_STYLES = {"kept": "green", "broken": "bold red", "note": "yellow", "skipped": "dim"}
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="module:Class, or the name of a registered one.")]
ArgsOption = Annotated[str, typer.Option("--args", help="Keyword arguments of the class, a JSON object.")]
DatasetOption = Annotated[
    Path | None, typer.Option(help="A JSONL file; the row with the seed's number is the episode's task.")
]
ResetTimeoutOption = Annotated[float, typer.Option(help="Seconds for a reset.", min=0.1)]
StepTimeoutOption = Annotated[float, typer.Option(help="Seconds for a step.", min=0.1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_environments(as_json: JsonOption = False) -> None:
    """List the environments that installed packages register, with what they declare."""
    import asyncio
    import json
    from dataclasses import asdict

    from rollart_hpc.config.registered import ENVIRONMENTS, registered

    found = dict(sorted(registered(ENVIRONMENTS).items()))
    described = asyncio.run(_described(found))
    if as_json:
        records = {
            name: {
                "environment": found[name],
                **({"fault": what} if isinstance(what, str) else {"properties": asdict(what)}),
            }
            for name, what in described.items()
        }
        print(json.dumps(records))
        return
    from rich.console import Console
    from rich.table import Table

    if not found:
        print(f"no installed package registers any, under the entry point group {ENVIRONMENTS}")
    table = Table("name", "environment", "declares", box=None)
    for name, what in described.items():
        table.add_row(name, found[name], what if isinstance(what, str) else _declared(what))
    Console(highlight=False).print(table)


async def _described(found: Mapping[str, str]) -> dict[str, EnvironmentProperties | str]:
    """What each class declares, or why that is not known."""
    from rollart_hpc.data_plane.environment_process import EnvironmentProcess
    from rollart_hpc.errors import ConfigError, EnvironmentFault

    described: dict[str, EnvironmentProperties | str] = {}
    for name, entry_point in found.items():
        spec = _spec(entry_point, {}, None)
        process = EnvironmentProcess(spec)
        try:
            described[name] = await process.loaded(spec.reset_timeout_s)
        except (ConfigError, EnvironmentFault) as error:
            described[name] = str(error)
        finally:
            process.kill()
            await process.child.wait_ended()
    return described


@app.command("check")
def check(
    name: NameArgument,
    args: ArgsOption = "{}",
    dataset: DatasetOption = None,
    seeds: Annotated[int, typer.Option(help="Episodes to compare; fewer when they take long.", min=2)] = 16,
    turns: Annotated[int, typer.Option(help="Turns of each at most.", min=1)] = 8,
    reset_timeout: ResetTimeoutOption = 60.0,
    step_timeout: StepTimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Hold an environment to what it declares: seeds, replay, nonsense, siblings, threads, memory, times, kill.

    It runs in child processes, as in a run. Exit code 0: every promise is kept; 1: one is broken; 2: it cannot be
    loaded.
    """
    import asyncio
    import json

    from rollart_hpc.data_plane.environment_kit import check_environment

    spec = _spec(name, parse_arguments(args, example=_EXAMPLE), dataset, reset_timeout, step_timeout)
    report = asyncio.run(check_environment(spec, num_seeds=seeds, max_turns=turns))
    if as_json:
        print(json.dumps(report.as_record()))
    else:
        from rich.console import Console

        _print(Console(highlight=False), report)
    if not report.is_sound:
        raise typer.Exit(1)


@app.command("play")
def play(
    name: NameArgument,
    policy: Annotated[
        str, typer.Option(help="human (lines of the standard input), random, or a file with one action a line.")
    ] = "human",
    seed: Annotated[int, typer.Option(help="Of the episode.", min=0)] = 0,
    args: ArgsOption = "{}",
    dataset: DatasetOption = None,
    turns: Annotated[int, typer.Option(help="Turns at most.", min=1)] = 100,
    reset_timeout: ResetTimeoutOption = 60.0,
    step_timeout: StepTimeoutOption = 30.0,
) -> None:
    """Play one episode by hand, at random or from a file, through the host that a run has.

    In an action that is typed, \\n stands for a line break.
    """
    import asyncio

    spec = _spec(name, parse_arguments(args, example=_EXAMPLE), dataset, reset_timeout, step_timeout)
    asyncio.run(_play(spec, _chooser(policy, seed), seed, turns))


async def _play(
    spec: EnvironmentSpec, choose: Callable[[Mapping[str, Any]], str | None], seed: int, turns: int
) -> None:
    import asyncio

    from rollart_hpc.data_plane.environment_host import EnvironmentHost
    from rollart_hpc.errors import ConfigError, EnvironmentFault

    try:
        async with EnvironmentHost({"play": spec}, max_children=1) as host, host.open("play") as session:
            state = await session.reset(seed)
            print(state.observation)
            total = 0.0
            for turn in range(1, turns + 1):
                action = await asyncio.to_thread(choose, state.info)
                if action is None:
                    print(f"[end of input after {turn - 1} turns, reward {total:g} in all]")
                    return
                state = await session.step(action)
                total += state.reward
                print(f"[turn {turn}, reward {state.reward:g}]\n{state.observation}")
                if state.terminated or state.truncated:
                    how = "terminated" if state.terminated else "truncated"
                    print(f"[{how} after {turn} turns, reward {total:g} in all; info {state.info}]")
                    return
            print(f"[{turns} turns are over, reward {total:g} in all]")
    except EnvironmentFault as fault:
        raise ConfigError(f"{spec.entry_point}: {fault}") from fault


def _chooser(policy: str, seed: int) -> Callable[[Mapping[str, Any]], str | None]:
    """What gives the next action for an info; None when there are no more."""
    if policy == "random":
        from rollart_hpc.data_plane.environment_kit import RandomPolicy

        rng = RandomPolicy(seed)

        def at_random(info: Mapping[str, Any]) -> str:
            action = rng.act(info)
            print(f"> {action}")
            return action

        return at_random
    lines = _typed() if policy == "human" else _lines_of(Path(policy))
    return lambda info: next(lines, None)


def _typed() -> Iterator[str]:
    while True:
        try:
            yield input("> ").replace("\\n", "\n")
        except EOFError:
            return


def _lines_of(path: Path) -> Iterator[str]:
    from rollart_hpc.errors import ConfigError

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--policy {path}: no such policy and no file to read: {error}; expected human, random or a file with one "
            "action a line"
        ) from error
    return (line.replace("\\n", "\n") for line in text.splitlines())


def _spec(
    name: str, args: dict[str, Any], dataset: Path | None, reset_timeout_s: float = 60.0, step_timeout_s: float = 30.0
) -> EnvironmentSpec:
    from rollart_hpc.config.registered import ENVIRONMENTS, entry_point_of
    from rollart_hpc.data_plane.environment_spec import EnvironmentSpec
    from rollart_hpc.errors import ConfigError

    try:
        entry_point = entry_point_of(name, ENVIRONMENTS)
    except ValueError as error:
        raise ConfigError(f"{name!r}: {error}") from error
    return EnvironmentSpec(
        entry_point=entry_point,
        args=args,
        dataset=dataset,
        reset_timeout_s=reset_timeout_s,
        step_timeout_s=step_timeout_s,
    )


def _declared(properties: EnvironmentProperties) -> str:
    from dataclasses import asdict

    held = [key if value is True else f"{key}={value}" for key, value in asdict(properties).items() if value]
    return ", ".join(held) or "nothing: a process for each instance"


def _print(console: Console, report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(f"{report.entry_point} declares {_declared(report.properties)}")
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for verdict in report.verdicts:
        said = Text(verdict.text)
        if verdict.advice and verdict.ruling == "broken":
            said.append(f"\n{verdict.advice}", style="bold")
        table.add_row(Text(verdict.ruling, style=_STYLES[verdict.ruling]), verdict.promise, said)
    console.print(table)
    for line in _figures(report):
        console.print(line)


def _figures(report: Report) -> Iterator[str]:
    figures = report.figures
    if not figures.reset_ms:
        return
    for what, times in (("reset", figures.reset_ms), ("step", figures.step_ms)):
        yield f"{what}: p50 {times['p50']:.3g} ms, p99 {times['p99']:.3g} ms"
    yield f"start: {figures.start_s:.2f} s until a new child has played its first reset"
    yield (
        f"memory: {figures.child_mb:g} MB a child, {figures.instance_kb:g} KB a further instance, "
        f"{figures.episode_kb:g} KB an episode"
    )
