"""A run from its directory: the lock, its attempts, the report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.checkpoint import find_newest, find_sound
from rollart_hpc.data_plane.stop_signals import disregard_stop_signals
from rollart_hpc.errors import RollartError
from rollart_hpc.launcher import run_directory
from rollart_hpc.launcher.attempt_log import AttemptLog, read_attempts, read_events
from rollart_hpc.launcher.attempts import Attempts
from rollart_hpc.launcher.continuation import Continuation, UserContinues
from rollart_hpc.launcher.failure import AttemptFailedError
from rollart_hpc.launcher.leader import AttemptEnd
from rollart_hpc.launcher.starters import Starter
from rollart_hpc.observe.console import console
from rollart_hpc.observe.logs import log_to_stderr
from rollart_hpc.observe.report import print_report
from rollart_hpc.slurm.node import node_name

_USER = UserContinues()
_NONE: Mapping[str, list[Any]] = MappingProxyType({})


class NothingToDoError(RollartError):
    """Every step of the run is trained."""

    exit_code = 0


def check_unfinished(config: RunConfig, *, job: str = "") -> None:
    """Raises NothingToDoError when every step of the run is trained and soundly saved.

    A leader that was killed before it could say so is made up for in attempts.jsonl, in the name of ``job``.
    """
    directory, steps = config.run.path(), config.run.steps
    newest = find_newest(directory)
    if newest is None or newest.state.step < steps:
        return
    sound = find_sound(directory)
    if sound is None or sound.state.step < steps:
        return
    attempts = read_attempts(directory)
    if attempts and attempts[-1].event != "done":
        AttemptLog(directory, attempts[-1].attempt, job=job or attempts[-1].job, node=node_name()).write("done")
    raise NothingToDoError(
        f"{directory}: nothing to do, all {sound.state.step} steps are trained; train on with --set run.steps=N"
    )


def lead(
    config: RunConfig,
    starter: Starter,
    *,
    advice: str,
    continuation: Continuation = _USER,
    changes: Mapping[str, list[Any]] = _NONE,
    job: str = "",
) -> bool:
    """Runs attempts until the run is done or stopped, and prints what becomes of it.

    Args:
        config: its directory exists.
        starter: where the processes go.
        advice: what a user does when the run has stopped or failed.
        continuation: what makes the run go on when it was stopped.
        changes: config keys whose values differ from the run's, old and new.
        job: Slurm's id of the job.

    Returns:
        True when it was stopped and is not done.

    Raises:
        AttemptFailedError: the last attempt failed and there is no further one; the text says where to look.
        ConfigError: another process leads this run.
    """
    log_to_stderr("leader")
    screen, directory = console(), config.run.path()
    with run_directory.owned(directory):
        if job:
            run_directory.record_job(directory, job)
        run_directory.keep_changes(directory, changes)
        attempts = Attempts(config, starter, screen, continuation=continuation, changes=changes, job=job)
        try:
            end = asyncio.run(_run(attempts))
        except AttemptFailedError as error:
            logs = f"logs: {directory}/attempts/latest/logs; {advice}"
            raise AttemptFailedError("\n".join(filter(None, (str(error), error.details, logs)))) from error
    print_report(screen, directory)
    if end.stopped:
        reason = f": {end.cause}" if end.cause else ""
        follows = read_events(directory)[-1].next
        screen.print(f"stopped{reason}; {follows or advice}", highlight=False, markup=False)
    return end.stopped


async def _run(attempts: Attempts) -> AttemptEnd:
    try:
        return await attempts.run()
    finally:
        disregard_stop_signals()
