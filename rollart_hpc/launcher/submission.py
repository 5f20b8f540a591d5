"""From a config to a job in Slurm's queue: everything that can be known is checked before anything is submitted."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_hpc.config.load import load_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import merge_site
from rollart_hpc.errors import ConfigError, PreflightError
from rollart_hpc.launcher import run_directory
from rollart_hpc.launcher.attempt_log import read_attempts, read_events
from rollart_hpc.launcher.config_changes import describe as describe_change
from rollart_hpc.launcher.find_run import find_run
from rollart_hpc.launcher.lead import check_unfinished
from rollart_hpc.launcher.preflight import check_run
from rollart_hpc.launcher.run_job import RunJob
from rollart_hpc.launcher.services import store_size_mb
from rollart_hpc.launcher.slurm_continuation import last_stop_s
from rollart_hpc.launcher.status import OVER
from rollart_hpc.slurm.doctor.checks.finding import Finding, Severity, errors_of
from rollart_hpc.slurm.doctor.examination import examine
from rollart_hpc.slurm.het_submitit import HetSlurmExecutor
from rollart_hpc.slurm.queue.job_states import JobStates
from rollart_hpc.slurm.queue.squeue import cancel_job
from rollart_hpc.slurm.script.allocation import components, oddities
from rollart_hpc.slurm.script.render import render

_LAST_WORDS_S = 5.0
"""What a leader may take to end after it has recorded the end of its attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A run that could be submitted."""

    own: RunConfig
    """As its user wrote it: what is kept, so that a later submission takes the site's options of its day."""
    config: RunConfig
    """With the site's options applied."""
    script: str
    """What sbatch gets, byte for byte."""
    warnings: list[str]
    is_new: bool
    """Its directory does not exist yet."""

    def submit(self) -> RunJob:
        """Makes the run's directory, if it is new, and submits.

        Raises:
            SubmissionRefusedError: sbatch refused, in its own words; nothing is left behind.
        """
        directory, now = self.config.run.path(), time.time()
        if self.is_new:
            run_directory.create(self.own)
        else:
            _end_broken_job(directory)
        try:
            job = HetSlurmExecutor(directory / run_directory.SCRIPTS).submit_script(
                self.script,
                component_names=[component.name for component in components(self.config)],
                job_class=RunJob,
            )
        except BaseException:
            if self.is_new:
                shutil.rmtree(directory)
            raise
        run_directory.record_job(directory, job.job_id, at=now)
        return job


def prepare(source: str | Path, *, overrides: Sequence[str] = (), site: Path | None = None) -> Submission:
    """Reads a config, or takes a run that shall go on, and renders its batch script.

    Args:
        source: a TOML file; or a run: its directory, its name below runs/, or the id of its job.
        overrides: ``key.path=value``.
        site: the site's profile.

    Raises:
        ConfigError: the config, the site's profile or something that they name is wrong; or the run goes on already.
        NothingToDoError: every step of the run is trained.
    """
    path = Path(source)
    is_new = path.suffix == ".toml" or path.is_file()
    changes: dict[str, list[Any]] = {}
    if is_new:
        own = load_config(path, overrides)
    else:
        directory = find_run(str(source))
        own, changes = run_directory.read_overridden(directory, overrides)
        check_unfinished(own)
        _refuse_running(directory)
    config, warnings = merge_site(own, site)
    warnings = [*(describe_change(key, values) for key, values in changes.items()), *warnings]
    warnings += [*check_run(config, resuming=not is_new, leads_here=False), *oddities(config)]
    script = render(config, python=sys.executable, directory=Path.cwd())
    return Submission(own=own, config=config, script=script, warnings=warnings, is_new=is_new)


def examine_cluster(submission: Submission, *, probe: bool = True) -> list[Finding]:
    """What the doctor finds, and what sbatch would say.

    Raises:
        PreflightError: this cluster cannot run it; every error is listed, one a line.
        SlurmError: sbatch would refuse; in its own words.
    """
    config = submission.config
    _, findings = examine(
        config,
        directory=Path.cwd(),
        probe=probe,
        store_mb=store_size_mb(config),
        last_stop_s=last_stop_s(config.run.path()),
    )
    if errors := errors_of(findings):
        raise PreflightError("\n".join(describe(finding) for finding in errors))
    return [finding for finding in findings if finding.severity is Severity.WARNING]


def describe(finding: Finding) -> str:
    """A finding in one line."""
    where = f"pools.{finding.component}: " if finding.component else ""
    return f"{where}{finding.found}; {finding.change}" if finding.change else f"{where}{finding.found}"


def submit(
    config: str | Path, *, overrides: Sequence[str] = (), site: str | Path | None = None, check: bool = True
) -> RunJob:
    """Submits a run as one Slurm job.

    Args:
        config: a run's TOML file; or a run that shall go on: its directory, its name below runs/, or a job's id.
        overrides: ``key.path=value``, as --set takes them.
        site: the site's profile; by default $ROLLART_SITE, the user's, the system's.
        check: ask the doctor first (see `rollart-hpc doctor`).

    Returns:
        A submitit job: ``state``, ``wait()``, ``result()`` (the run's summary), ``exception()``, ``cancel()``,
        ``stdout()``, ``components``; `RunJob.status` and ``run_directory`` beside.

    Raises:
        ConfigError: the input is wrong.
        PreflightError: this cluster cannot run it.
        SlurmError: Slurm refused, in its own words.
    """
    submission = prepare(config, overrides=overrides, site=None if site is None else Path(site))
    if check:
        examine_cluster(submission)
    return submission.submit()


def _refuse_running(directory: Path) -> None:
    attempts, jobs = read_attempts(directory), run_directory.jobs_of(directory)
    has_ended = bool(attempts) and attempts[-1].event in OVER and (not jobs or attempts[-1].job == jobs[-1])
    goes_on = any(event.next for event in read_events(directory)[-1:])
    deadline = time.monotonic() + (_LAST_WORDS_S if has_ended else 0.0)
    while run_directory.is_owned(directory):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{directory}: this run goes on already; see `rollart-hpc status {shlex.quote(str(directory))}`"
            )
        time.sleep(0.1)
    if not jobs or (has_ended and not goes_on):
        return
    job = JobStates().status(jobs[-1])
    if job.components and not job.ended and not job.is_broken:
        raise ConfigError(
            f"{directory}: job {job.job_id} of this run is {job.state}; wait for it, or end it with "
            f"`rollart-hpc cancel {shlex.quote(str(directory))}`"
        )


def _end_broken_job(directory: Path) -> None:
    """Cancels what is left in the queue of a job that lost a node and will never start."""
    for job_id in run_directory.jobs_of(directory)[-1:]:
        if JobStates().status(job_id).is_broken:
            cancel_job(job_id)
