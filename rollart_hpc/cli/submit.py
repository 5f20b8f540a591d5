"""``rollart-hpc submit``: a run as one Slurm job."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollart_hpc.cli.render import SiteOption
from rollart_hpc.cli.run import EXIT_STOPPED, SetOption, warn

if TYPE_CHECKING:
    from rollart_hpc.launcher.run_job import RunJob

_EXIT_CODES = {"done": 0, "stopped": EXIT_STOPPED}


def submit(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG|RUN|JOB", help="A run's TOML file; or a run that shall go on, as for status."),
    ],
    overrides: SetOption = None,
    site: SiteOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the batch script; check, submit nothing.")] = False,
    test_only: Annotated[bool, typer.Option("--test-only", help="Ask sbatch whether it would take it.")] = False,
    doctor: Annotated[bool, typer.Option(help="Check the cluster first (see `rollart-hpc doctor`).")] = True,
    probe: Annotated[bool, typer.Option(help="Let the doctor try a free node of each component.")] = True,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Show the leader's output until the run ends.")
    ] = False,
) -> None:
    """Submit CONFIG as one heterogeneous Slurm job, or go on with RUN from its newest complete checkpoint.

    Exit code 0: submitted, with --follow: done; 2: the input is wrong; 3: the cluster cannot run it or Slurm refuses;
    with --follow also 1: failed; 75: stopped in order, submit RUN again.
    """
    from rollart_hpc.launcher.submission import describe, examine_cluster, prepare
    from rollart_hpc.slurm.script.submission_trial import try_submission

    submission = prepare(config, overrides=overrides or [], site=site)
    warn(submission.warnings)
    if dry_run:
        sys.stdout.write(submission.script)
        return
    if doctor:
        warn([describe(finding) for finding in examine_cluster(submission, probe=probe)])
    if test_only:
        warn(try_submission(submission.script))
        print("sbatch would take it; nothing was submitted")
        return
    job = submission.submit()
    warn(list(job.warnings))
    print(
        f"job {job.job_id} submitted: {job.run_directory}\n"
        f"rollart-hpc status {shlex.quote(str(job.run_directory))} --watch",
        flush=True,
    )
    if follow:
        _follow(job)


def _follow(job: RunJob) -> None:
    from rollart_hpc.launcher.log_files import LEADER, follow, log_files
    from rollart_hpc.launcher.run_directory import jobs_of
    from rollart_hpc.launcher.status import is_over

    states, said = job.watcher.states, ""

    def look() -> dict[str, Path]:
        nonlocal said
        newest = jobs_of(job.run_directory)[-1]
        queued = states.status(newest)
        waits = f"{queued.state}: {queued.reason}" if queued.reason else queued.state
        if not queued.ended and waits != said:
            said = waits
            print(f"job {newest} is {waits}", file=sys.stderr)
        return {name: path for name, path in log_files(job.run_directory).items() if name == LEADER}

    for line in follow(look, lambda: is_over(job.run_directory, states), 0):
        print(line, flush=True)
    status = job.status()
    if code := _EXIT_CODES.get(status.state, 1):
        why = f"; {status.cause}" if status.cause else ""
        print(f"the run is {status.state}{why}", file=sys.stderr)
        raise typer.Exit(code)
