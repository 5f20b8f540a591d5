"""The batch script's one command: leads the run whose config it is given, inside a Slurm job.

The first start makes the run's directory; every other one, whether Slurm requeued the job, its leader submitted another
one after it, or a user submitted the script again, goes on with the run from what its files say.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError, RollartError
from rollart_hpc.launcher import run_directory
from rollart_hpc.launcher.config_changes import describe
from rollart_hpc.launcher.lead import check_unfinished, lead
from rollart_hpc.launcher.preflight import check_run
from rollart_hpc.launcher.slurm_continuation import SlurmContinuation, was_cancelled
from rollart_hpc.launcher.steps import StepStarter
from rollart_hpc.observe.console import console
from rollart_hpc.slurm.allocated import AllocatedJob, read_allocated_job

_FORMER_LEADER_S = 120.0
"""A file system may hold the lock of a leader whose node was lost for that long."""


class CancelledBeforeError(RollartError):
    """The job after which this one was submitted was cancelled: the run waits for its user."""

    exit_code = 0


def lead_job(config: RunConfig) -> bool:
    """Leads the run as the batch script of a job; True when it was stopped and is not done.

    Raises:
        PreflightError: this is no job, or not one with the components of this config.
        ConfigError: the config is wrong on this node, or contradicts the run's.
        NothingToDoError: every step is trained.
        CancelledBeforeError: it should not go on.
        AttemptFailedError: the last attempt failed.
    """
    job = read_allocated_job()
    directory = config.run.path()
    changes = run_directory.open_or_create(config)
    run_directory.forget_end(directory)
    check_run(config, resuming=True)
    if changes is not None:
        follow_former(directory, job)
        check_unfinished(config, job=job.job_id)
    for key, values in (changes or {}).items():
        console().print(f"changed: {describe(key, values)}", highlight=False, markup=False)
    return lead(
        config,
        StepStarter(config, job),
        advice=f"go on with: rollart-hpc submit {shlex.quote(str(directory))}",
        continuation=SlurmContinuation(config, job),
        changes=changes or {},
        job=job.job_id,
    )


def follow_former(directory: Path, job: AllocatedJob) -> None:
    """Waits until the leader before has ended, where there was one in this job or in that which it was chained to.

    Raises:
        CancelledBeforeError: a user has ended the job that this one was chained to.
        ConfigError: the leader before has not ended.
    """
    former = run_directory.chained_jobs(directory).get(job.job_id)
    if former is not None and not job.restarts and was_cancelled(former):
        raise CancelledBeforeError(
            f"job {former}, which this one should follow, was cancelled: the run does not go on; "
            f"rollart-hpc submit {shlex.quote(str(directory))} goes on with it"
        )
    if former is None and not job.restarts:
        return
    deadline = time.monotonic() + _FORMER_LEADER_S
    while run_directory.is_owned(directory):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{directory}: the leader of the attempt before still holds the run's lock after "
                f"{_FORMER_LEADER_S:g} s; see that it has ended, then submit the run again"
            )
        time.sleep(1.0)


def read_embedded_config(text: str) -> RunConfig:
    """The config of a batch script.

    Raises:
        ConfigError: it is none.
    """
    import msgspec

    from rollart_hpc.config.load import parse_config

    try:
        data = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the config on standard input is not valid JSON: {error}; use the script that `rollart-hpc render` prints"
        ) from error
    return parse_config(data, source="the script's config")
