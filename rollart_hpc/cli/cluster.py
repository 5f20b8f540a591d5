"""``rollart-hpc cluster``: a Slurm of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from rollart_hpc.slurm.single_machine import Cluster

_EXIT_NOT_UP = 3
_EXIT_TERMINATED = 128 + signal.SIGTERM
_WORDS = "rollart_hpc.cluster.words"
Directory = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="The cluster's directory; ~/.rollart-hpc/cluster when absent.")
]

app = typer.Typer(help="A real Slurm of this machine, for tests and trials.", no_args_is_help=True)


class Preempt(StrEnum):
    """What becomes of a preempted job."""

    requeue = "requeue"
    cancel = "cancel"


class CommandAfterDashes(TyperCommand):
    """Keeps the words after ``--`` apart, so that the first one is never taken for DIR."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the words after the first ``--`` into the context."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@app.command("up")
def up(
    directory: Directory = None,
    accounting: Annotated[
        bool, typer.Option("--accounting/--no-accounting", help="With slurmdbd and MariaDB, for sacct.")
    ] = True,
    user_signal: Annotated[
        bool,
        typer.Option("--user-signal/--no-user-signal", help="Preempted jobs are sent the signal of their --signal."),
    ] = True,
    grace: Annotated[int, typer.Option(metavar="SECONDS", help="From a preemption's notice to its end.")] = 10,
    preempt: Annotated[Preempt, typer.Option(help="What becomes of a preempted job.")] = Preempt.requeue,
    kill_wait: Annotated[int, typer.Option(metavar="SECONDS", help="From SIGTERM to SIGKILL.")] = 5,
) -> None:
    """Start a Slurm in DIR: two nodes each of h800, h20 (8 pretended GPUs a node) and cpu.

    No root, no systemd, nothing outside DIR. It goes on until `cluster down`. Exit code 3: it did not start, and
    nothing of it is left running.
    """
    from rollart_hpc.slurm.single_machine import ClusterOptions, start_cluster

    cluster = _find(directory)
    if cluster is not None and cluster.state() == "up":
        print(f"{cluster.directory}: already up, as it was started; `cluster down` first to change options")
        _print_next_steps(cluster)
        return
    options = ClusterOptions(
        accounting=accounting, user_signal=user_signal, grace_s=grace, preempt=preempt.value, kill_wait_s=kill_wait
    )
    # What has been started is ended on the way out, so being asked to end must not end this process at once.
    signal.signal(signal.SIGTERM, _exit_in_order)
    cluster = start_cluster(_resolve(directory), options)
    print(f"{cluster.directory}: up")
    _print_next_steps(cluster)


@app.command("down")
def down(directory: Directory = None) -> None:
    """Cancel the jobs of the cluster in DIR and end it; its logs stay."""
    cluster = _find(directory)
    if cluster is None:
        print(f"{_resolve(directory)}: nothing runs")
        return
    for oddity in cluster.stop():
        print(f"warning: {oddity}", file=sys.stderr)
    print(f"{cluster.directory}: down")


@app.command("status")
def status(
    directory: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show the daemons and nodes of the cluster in DIR.

    Exit code 3: it is not up.
    """
    from rollart_hpc.slurm.single_machine.report import ClusterReport, report_on

    cluster = _find(directory)
    report = ClusterReport(directory=str(_resolve(directory))) if cluster is None else report_on(cluster)
    print(report.as_json() if as_json else report.as_text())
    if report.state != "up":
        raise typer.Exit(_EXIT_NOT_UP)


@app.command("shell", cls=CommandAfterDashes, options_metavar="")
def shell(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR] [-- COMMAND...]", help="As of the other commands.")
    ] = None,
) -> None:
    """Run COMMAND, or your shell, with SLURM_CONF and ROLLART_SITE set for the cluster in DIR.

    Its exit code is the command's.
    """
    from rollart_hpc.errors import ConfigError, PreflightError

    cluster = _find(directory)
    if cluster is None or cluster.state() == "down":
        place = _resolve(directory)
        raise PreflightError(f"{place}: no cluster is up; start it: rollart-hpc cluster up {place}")
    words: list[str] = context.meta[_WORDS] or [os.environ.get("SHELL") or "/bin/sh"]
    environment = cluster.environment()
    program = shutil.which(words[0], path=environment["PATH"])
    if program is None:
        raise ConfigError(f"{words[0]}: no such program; give one that is on PATH")
    sys.stdout.flush()
    os.execve(program, words, environment)


def _exit_in_order(number: int, frame: object) -> None:
    sys.exit(_EXIT_TERMINATED)


def _find(directory: Path | None) -> Cluster | None:
    from rollart_hpc.slurm.single_machine import read_cluster

    return read_cluster(_resolve(directory))


def _resolve(directory: Path | None) -> Path:
    from rollart_hpc.slurm.single_machine import DEFAULT_DIRECTORY

    return (directory or DEFAULT_DIRECTORY).expanduser().resolve()


def _print_next_steps(cluster: Cluster) -> None:
    print(f"work with it in a shell of its own: rollart-hpc cluster shell {cluster.directory}")
    print("or in this one:")
    for name, value in cluster.variables().items():
        print(f"  export {name}={value}")
