"""``rollart-hpc status`` and ``rollart-hpc list``: how runs are."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_hpc.cli.run import warn

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rollart_hpc.launcher.pool_status import RoleStatus
    from rollart_hpc.launcher.status import RunStatus
    from rollart_hpc.slurm.queue.job_states import JobStates

_LOOK_EVERY_S = 2.0
_ASKED_ONCE_S = 0.0
"""A job that is neither in the queue nor in accounting is over for whoever does not ask again."""
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN|JOB", help="A run's directory, its name below runs/, or a job id.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def status(
    run: RunArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the run ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how RUN is: its job, its workers, its step, and what it waits for.

    Slurm's queue is asked once, with --watch every 30 s to 2 min; everything else comes from the run's own files.
    """
    from rollart_hpc.launcher.find_run import find_run
    from rollart_hpc.launcher.status import read_status
    from rollart_hpc.slurm.queue.job_states import JobStates

    directory = find_run(run)
    if watch:
        _watch(directory, JobStates(), as_json)
        return
    _print(read_status(directory, JobStates(vanished_after_s=_ASKED_ONCE_S)), as_json)


def list_runs(
    parent: Annotated[Path, typer.Argument(metavar="DIR", help="Where the runs are.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List the runs in DIR with their states."""
    import msgspec
    from rich.table import Table

    from rollart_hpc.launcher.find_run import find_runs
    from rollart_hpc.launcher.status import read_statuses
    from rollart_hpc.observe.console import console
    from rollart_hpc.slurm.queue.job_states import JobStates

    found, faults = read_statuses(find_runs(parent), JobStates(vanished_after_s=_ASKED_ONCE_S))
    warn([line for fault in faults for line in fault.splitlines()])
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    table = Table("run", "state", "step", "job", "attempt", "last step", box=None)
    for one in found:
        at = "" if one.updated is None else f"{datetime.fromtimestamp(one.updated):%Y-%m-%d %H:%M}"
        directory = Path(one.directory)
        table.add_row(directory.name, one.state, f"{one.step}/{one.steps}", one.job or "-", str(one.attempt or "-"), at)
    console().print(table if found else f"no runs in {parent}/")


def _watch(directory: Path, states: JobStates, as_json: bool) -> None:
    from rich.live import Live

    from rollart_hpc.launcher.status import OVER, read_status
    from rollart_hpc.observe.console import console

    screen = console()
    if as_json or not screen.is_terminal:
        before = None
        while True:
            now = read_status(directory, states)
            if now != before:
                _print(now, as_json)
            if now.state in OVER:
                return
            before = now
            time.sleep(_LOOK_EVERY_S)
    with Live(console=screen, auto_refresh=False) as live:
        while True:
            now = read_status(directory, states)
            live.update(_render(now), refresh=True)
            if now.state in OVER:
                return
            time.sleep(_LOOK_EVERY_S)


def _print(one: RunStatus, as_json: bool) -> None:
    import msgspec

    from rollart_hpc.observe.console import console

    if as_json:
        print(msgspec.json.encode(one).decode(), flush=True)
    else:
        console().print(_render(one), highlight=False)


def _render(one: RunStatus) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from rollart_hpc.launcher.status import age_s

    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_row("run", Text(f"{one.name}: {one.state}"))
    facts.add_row("directory", Text(one.directory))
    if one.job:
        start = (
            "" if one.expected_start is None else f", expected {datetime.fromtimestamp(one.expected_start):%m-%d %H:%M}"
        )
        why = f" ({one.reason})" if one.reason else ""
        facts.add_row("job", Text(f"{one.job} {one.job_state}{why}{start}"))
    if one.next:
        facts.add_row("next", Text(f"{one.next}: attempt {one.attempt + 1}"))
    if one.attempt:
        age = age_s(one)
        late = "" if age is None or one.state != "running" else f", the last one {age:.0f} s ago"
        facts.add_row(
            "progress", Text(f"attempt {one.attempt}, step {one.step} of {one.steps}, version {one.version}{late}")
        )
    if one.first_step_s is not None:
        facts.add_row("first step", Text(f"{one.first_step_s:.0f} s after the submission"))
    if one.success:
        shown = "  ".join(f"{name} {value:.2f}" for name, value in one.success.items() if value is not None)
        facts.add_row("success", Text(shown))
    if one.cause:
        facts.add_row("cause", Text(one.cause))
    lives = one.state == "running"
    pools = Table("pool", "hardware", "state", "nodes", "workers", box=None, pad_edge=False)
    for pool in one.pools:
        workers = "  ".join(f"{role.role} {_count(role, lives=lives)}" for role in pool.roles)
        pools.add_row(pool.name, pool.hardware, pool.state or "-", pool.nodes or "-", workers)
    return Group(facts, "", pools)


def _count(role: RoleStatus, *, lives: bool) -> str:
    """Such as 1/2, and +1 for one that joined the running run."""
    planned = f"{role.present}/{role.planned}" if lives else str(role.planned)
    joined = f"+{role.guests}" if role.guests else ""
    return f"{planned}{joined}" if role.planned else joined
