"""``rollart-hpc ledger``: the balance of a run's trajectories, from its journal alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def ledger(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print how every dispatched trajectory of RUN ended, by task and cause."""
    from rich.console import Console
    from rich.table import Table

    from rollart_hpc.control_plane.journal import JOURNAL_FILE, read_journal, replay
    from rollart_hpc.errors import ConfigError

    path = directory / JOURNAL_FILE
    if not path.is_file():
        raise ConfigError(f"{directory}: not a run's directory, it has no {JOURNAL_FILE}")
    books = replay(read_journal(path))
    balances: dict[str, Any] = {"all": books.balance(), **{task: books.balance(task) for task in books.tasks()}}
    if as_json:
        result = {name: {**one.as_summary(), "causes": one.causes} for name, one in balances.items()}
        print(json.dumps(result))
        return
    table = Table("", *balances, box=None)
    for outcome in balances["all"].as_summary():
        table.add_row(outcome, *(str(one.as_summary()[outcome]) for one in balances.values()))
    causes = Table("cause", "trajectories", box=None)
    for cause, count in sorted(balances["all"].causes.items()):
        causes.add_row(cause, str(count))
    console = Console()
    console.print(table)
    if causes.row_count:
        console.print(causes)
