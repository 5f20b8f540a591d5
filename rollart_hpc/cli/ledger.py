"""``rollart-hpc ledger``: how a run's trajectories ended, whether its books hold, and why one ended as it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollart_hpc.cli.status import JsonOption, RunArgument

if TYPE_CHECKING:
    from rollart_hpc.control_plane.audit import Audit
    from rollart_hpc.control_plane.trajectory_life import Life


def ledger(
    run: RunArgument,
    check: Annotated[
        bool, typer.Option("--check", help="Verify the books from the run's files; exit code 1 when they do not hold.")
    ] = False,
    why: Annotated[
        str | None, typer.Option("--why", metavar="ID", help="Tell the life of a trajectory, or of a group.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print how every dispatched trajectory of RUN ended, by task and cause.

    All comes from the run's files, while it goes on and after a kill too.
    """
    from rollart_hpc.control_plane.audit import audit, read_balances
    from rollart_hpc.control_plane.journal import has_journal
    from rollart_hpc.control_plane.trajectory_life import tell_life
    from rollart_hpc.errors import ConfigError
    from rollart_hpc.launcher.find_run import find_run

    if check and why is not None:
        raise ConfigError("--check and --why are two questions; ask one of them")
    directory = find_run(run)
    if not has_journal(directory):
        raise ConfigError(f"{directory}: has no journal; it begins when all workers of the first attempt are there")
    if check:
        _print_audit(directory, audit(directory), as_json)
    elif why is not None:
        _print_life(tell_life(directory, why), as_json)
    else:
        _print_balances(read_balances(directory), as_json)


def _print_balances(by_task: dict[str, Any], as_json: bool) -> None:
    from rich.table import Table

    from rollart_hpc.control_plane.audit import total_of
    from rollart_hpc.observe.console import console

    balances = {"all": total_of(by_task), **by_task}
    if as_json:
        print(json.dumps({name: {**one.as_summary(), "causes": one.causes} for name, one in balances.items()}))
        return
    table = Table("", *balances, box=None)
    for outcome in balances["all"].as_summary():
        table.add_row(outcome, *(str(one.as_summary()[outcome]) for one in balances.values()))
    causes = Table("cause", *balances, box=None)
    for cause in sorted(balances["all"].causes):
        causes.add_row(cause, *(str(one.causes.get(cause, 0)) for one in balances.values()))
    screen = console()
    screen.print(table)
    if causes.row_count:
        screen.print(causes)


def _print_audit(directory: Path, result: Audit, as_json: bool) -> None:
    from rollart_hpc.errors import RollartError

    books = result.total.as_summary()
    if as_json:
        said = {
            "holds": not result.findings,
            "findings": result.findings,
            "notes": result.notes,
            "trajectories": books,
            "batches": result.num_batches,
            "attempts": result.num_attempts,
            "metrics": result.last_step,
        }
        print(json.dumps(said))
        raise typer.Exit(1 if result.findings else 0)
    for note in result.notes:
        print(f"note: {note}")
    if result.findings:
        raise RollartError("\n".join(result.findings))
    ends = ", ".join(f"{count} {name}" for name, count in books.items() if count and name != "dispatched")
    print(
        f"{directory}: the books hold: {books['dispatched']} trajectories dispatched ({ends or 'none'}), "
        f"{result.num_batches} batches formed, metrics of {result.last_step} steps, {result.num_attempts} attempts"
    )


def _print_life(life: Life, as_json: bool) -> None:
    import msgspec
    from rich.table import Table
    from rich.text import Text

    from rollart_hpc.observe.console import console

    if as_json:
        print(msgspec.json.encode(life).decode())
        return
    screen = console()
    screen.print(Text(f"{life.id}: {life.state}"))
    events = Table("attempt", "event", "", box=None)
    for one in life.events:
        events.add_row(str(one.attempt), one.event, Text(one.text))
    screen.print(events)
    if life.members:
        members = Table("member", "state", "last", box=None)
        for member in life.members:
            returned = [one.text for one in member.events if one.event in ("finished", "failed")]
            members.add_row(Text(member.id), member.state, Text((returned or [member.events[-1].text])[-1]))
        screen.print(members)
