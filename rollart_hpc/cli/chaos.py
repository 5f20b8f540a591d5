"""``rollart-hpc chaos``: a run with faults on purpose, and whether anything was lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_hpc.cli.run import SetOption, warn

if TYPE_CHECKING:
    from rich.console import Console

    from rollart_hpc.config.schema import RunConfig
    from rollart_hpc.launcher.chaos import ChaosReport, Round

_POLL_S = 1.0


def chaos(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    kill: Annotated[
        str,
        typer.Option("--kill", metavar="ROLE", help="controller, actor_train, environment-1, nats-server, job, ..."),
    ],
    at: Annotated[
        list[str],
        typer.Option(
            "--at", metavar="STEP", help="7, a protocol step such as suspend or checkpoint, suspend:7; may be repeated."
        ),
    ],
    signal_name: Annotated[str, typer.Option("--signal", metavar="S", help="KILL, USR2, TERM, ...")] = "KILL",
    times: Annotated[int, typer.Option("--times", min=1, help="How often at each moment.")] = 1,
    *,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Run it unbroken, too, and compare: trained trajectories, weights of each version."
        ),
    ] = False,
    submit: Annotated[bool, typer.Option("--submit", help="As a Slurm job instead of on this machine.")] = False,
    overrides: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one object.")] = False,
) -> None:
    """Run CONFIG and send a signal to one of its processes at a given moment; then verify that nothing was lost.

    The run is started again as often as it takes: what a user, or Slurm, would do. Exit code 0: it got to its end and
    its books hold (with --compare: it is the same as the unbroken one); 1: not; 2: the input is wrong.
    """
    import msgspec

    from rollart_hpc.config.load import load_config
    from rollart_hpc.launcher import run_directory
    from rollart_hpc.launcher.chaos import compare_runs, plan_faults, run_with_faults
    from rollart_hpc.launcher.fault_injection import write_fault_plan
    from rollart_hpc.launcher.preflight import check_run
    from rollart_hpc.observe.console import console

    settings = load_config(config, overrides or [])
    plan = plan_faults(settings, kill=kill, at=at, signal_name=signal_name, times=times, in_job=submit)
    warn(check_run(settings))
    directory = run_directory.create(settings)
    write_fault_plan(directory, plan)
    report = run_with_faults(directory, _round(settings, submit=submit), plan)
    differences = None
    if compare:
        unbroken = _unbroken(settings)
        run_directory.create(unbroken)
        _round(unbroken, submit=submit)()
        differences = compare_runs(directory, unbroken.run.path())
    if as_json:
        print(json.dumps({**msgspec.to_builtins(report), "sound": report.is_sound, "differences": differences}))
    else:
        _print(report, differences, console())
    if not report.is_sound or differences:
        raise typer.Exit(1)


def _unbroken(config: RunConfig) -> RunConfig:
    directory = config.run.path()
    run = config.run.model_copy(update={"directory": directory.with_name(f"{directory.name}-unbroken")})
    return config.model_copy(update={"run": run})


def _round(config: RunConfig, *, submit: bool) -> Round:
    return _submit_and_wait(config) if submit else _run_here(config)


def _run_here(config: RunConfig) -> Round:
    """The leader is a process of its own, since it may be killed; its output goes where ours goes, but to stderr."""
    from rollart_hpc.launcher.status import read_status
    from rollart_hpc.processes import python_module
    from rollart_hpc.slurm.queue.job_states import JobStates

    directory = config.run.path()

    def play() -> str:
        argv = python_module("rollart_hpc.cli.main", "resume", str(directory))
        subprocess.run(argv, stdout=sys.stderr, check=False)
        return read_status(directory, JobStates()).state

    return play


def _submit_and_wait(config: RunConfig) -> Round:
    from rollart_hpc.launcher.submission import prepare

    def play() -> str:
        job = prepare(config.run.path()).submit()
        print(f"job {job.job_id}", file=sys.stderr)
        while not job.is_over():
            time.sleep(_POLL_S)
        return job.status().state

    return play


def _print(report: ChaosReport, differences: list[str] | None, screen: Console) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_row("run", f"{report.state}, {report.steps} steps, {report.trained} trajectories trained")
    table.add_row("faults", f"{report.fired} of {report.asked}")
    table.add_row("attempts", f"{report.attempts}, started {report.rounds} times from outside")
    table.add_row("turns", f"{report.handed_in} running trajectories handed in, {report.continued} went on from theirs")
    table.add_row("versions", f"{report.replayed} made again, {report.replayed_equal} of them bit for bit the same")
    for name, seconds in (("notice to saved", report.saved_s), ("start to step", report.first_step_s)):
        table.add_row(name, ", ".join(f"{one:.1f} s" for one in seconds) or "never")
    table.add_row("books", "hold" if not report.findings else f"{len(report.findings)} findings")
    if differences is not None:
        table.add_row("unbroken run", "the same" if not differences else f"{len(differences)} differences")
    screen.print(table)
    for line in (*report.findings, *(differences or ())):
        screen.print(f"  {line}")
