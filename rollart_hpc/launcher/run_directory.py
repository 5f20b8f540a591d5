"""The run's directory: created once, owned by one leader at a time, one sub-directory per attempt.

RUN/config.json   the config with all overrides     RUN/metrics.jsonl, tensorboard/, summary.json
RUN/journal/       what happened to trajectories    RUN/checkpoints/step-N/
RUN/attempts/N/   attempt.json, logs/ of each process; RUN/attempts/latest points to the newest
RUN/attempts.jsonl  starts and ends of attempts        RUN/jobs.jsonl  Slurm jobs of this run
RUN/slurm-ID.out    output of the batch script of a job; RUN/slurm/ the scripts
RUN/ends-with-job   the job after whose stop the run does not go on by itself; RUN/chaos.json faults on purpose
"""

from __future__ import annotations

import fcntl
import shlex
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from rollart_hpc.config.load import override_config, parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.launcher.config_changes import take_changes
from rollart_hpc.launcher.json_lines import append_record, read_records

_CONFIG = "config.json"
_LOCK = ".lock"
_NO_RUN = ("slurm-", f".{_CONFIG}")
"""Names that a batch script leaves before there is a run: its output, and what an interrupted start wrote."""
_JOBS = "jobs.jsonl"
_LAST_JOB = "ends-with-job"
SCRIPTS = "slurm"
"""The batch scripts as they were submitted."""
_LOCK_TRIES, _LOCK_RETRY_S = 10, 0.02


class _Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Slurm job of the run, and when it was submitted."""

    job: str
    at: float
    after: str = ""
    """The job at whose stop its leader submitted this one; empty of one that a user submitted."""


def create(config: RunConfig) -> Path:
    """Makes the directory of a new run and keeps its config in it.

    Raises:
        ConfigError: it exists, or cannot be made.
    """
    directory = config.run.path()
    if directory.exists():
        raise ConfigError(f"run.directory {str(directory)!r} exists already; resume it or choose another")
    _write(config, directory)
    return directory


def open_or_create(config: RunConfig) -> dict[str, list[Any]] | None:
    """The run's directory for a job's start: made if it has no run yet (None), else compared with it.

    Returns:
        The keys in which the config differs from the run's, with the old and the new value.

    Raises:
        ConfigError: it holds a run that cannot go on with this config, or something else, or cannot be made.
    """
    directory = config.run.path()
    if (directory / _CONFIG).exists():
        advice = (
            f"choose another run.directory, or go on with that run: rollart-hpc submit {shlex.quote(str(directory))}"
        )
        return take_changes(read_config(directory), config, advice=advice)
    if directory.exists() and any(not path.name.startswith(_NO_RUN) for path in directory.iterdir()):
        raise ConfigError(f"run.directory {str(directory)!r} is in use and holds no run; choose another")
    _write(config, directory)
    return None


def keep_changes(directory: Path, changes: Mapping[str, Sequence[Any]]) -> None:
    """Takes the new values into the run's config, so that the next attempt has them too.

    Args:
        directory: of the run; its lock is held.
        changes: as `take_changes` gives them.
    """
    if not changes:
        return
    path = directory / _CONFIG
    data = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    for key, (_, new) in changes.items():
        *parents, name = key.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        if new is None:
            section.pop(name, None)
        else:
            section[name] = new
    _replace(path, msgspec.json.format(msgspec.json.encode(data), indent=2))


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(content)
    temporary.replace(path)


def _write(config: RunConfig, directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _replace(directory / _CONFIG, config.model_dump_json(indent=2).encode())
    except OSError as error:
        raise ConfigError(f"run.directory {str(directory)!r}: {error.strerror}; choose another") from error


def is_run(directory: Path) -> bool:
    """Whether the directory holds a run; that of a model has a config.json too."""
    path = directory / _CONFIG
    return path.is_file() and b'"rollout"' in path.read_bytes()


def is_owned(directory: Path) -> bool:
    """Whether a leader holds the run's lock now; on another node only where the file system has locks."""
    try:
        # A shared lock needs no right to write, and lookers do not take each other for a leader.
        with (directory / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def record_job(directory: Path, job_id: str, *, at: float | None = None, after: str = "") -> None:
    """Notes a Slurm job of this run and when it was submitted, as far as that is known.

    ``after`` is the job whose leader submitted it, so that the run goes on.
    """
    if job_id not in jobs_of(directory):
        append_record(directory / _JOBS, _Job(job=job_id, at=time.time() if at is None else at, after=after))


def read_jobs(directory: Path) -> dict[str, float]:
    """The run's Slurm jobs in the order of their submission, each with its time in seconds since the epoch."""
    return {record.job: record.at for record in read_records(directory / _JOBS, _Job)}


def chained_jobs(directory: Path) -> dict[str, str]:
    """The jobs that a leader submitted at its stop, each with that leader's own job."""
    return {record.job: record.after for record in read_records(directory / _JOBS, _Job) if record.after}


def ask_to_end(directory: Path, job_id: str) -> None:
    """Lets the run end with this job's next stop: it then waits for its user."""
    (directory / _LAST_JOB).write_text(job_id)


def is_asked_to_end(directory: Path, job_id: str) -> bool:
    """Whether the run ends with this job's next stop."""
    try:
        return (directory / _LAST_JOB).read_text().strip() == job_id
    except OSError:
        return False


def forget_end(directory: Path) -> None:
    """A job that starts goes on with the run, whatever was asked before."""
    (directory / _LAST_JOB).unlink(missing_ok=True)


def jobs_of(directory: Path) -> list[str]:
    """Ids of the run's Slurm jobs, in the order of their submission."""
    return list(read_jobs(directory))


def read_config(directory: Path) -> RunConfig:
    """The config of an existing run.

    Raises:
        ConfigError: the directory holds no run, or its config is of another version.
    """
    path = directory / _CONFIG
    if not path.is_file():
        raise ConfigError(f"{directory}: not a run's directory, it has no {_CONFIG}; give what `rollart-hpc run` made")
    try:
        data = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        data["run"]["directory"] = str(directory.absolute())
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not the config of a run; give what `rollart-hpc run` made: {error}") from error
    return parse_config(data, source=str(path))


def read_overridden(directory: Path, overrides: Sequence[str]) -> tuple[RunConfig, dict[str, list[Any]]]:
    """The config of a run that shall go on, with overrides, and what they change: by key, old and new value.

    Raises:
        ConfigError: as in `read_config`; an override is wrong, or would make another run of it.
    """
    for override in overrides:
        if override.startswith(("run.directory", "run.name")):
            raise ConfigError(f"--set {override}: a run keeps its name and directory; leave it out")
    own = read_config(directory)
    config = override_config(own, overrides)
    return config, take_changes(own, config, advice="leave these out, or begin a run of its own with them")


@contextmanager
def owned(directory: Path) -> Generator[None]:
    """Holds the run's lock while the block runs.

    Raises:
        ConfigError: another leader holds it.
    """
    with (directory / _LOCK).open("w") as lock:
        _take(lock, directory)
        yield


def _take(lock: IO[str], directory: Path) -> None:
    """Tries for a moment: `is_owned` holds the lock, too, while it looks."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_LOCK_RETRY_S)
        else:
            return
    raise ConfigError(f"{directory}: another process runs this; wait for it or end it first")


def next_attempt(directory: Path) -> int:
    """The number of a new attempt, counted from 1; its directory exists on return."""
    attempts = directory / "attempts"
    attempts.mkdir(exist_ok=True)
    number = 1 + max((int(path.name) for path in attempts.iterdir() if path.name.isdigit()), default=0)
    (attempts / str(number)).mkdir()
    link = attempts / ".latest"
    link.unlink(missing_ok=True)
    link.symlink_to(str(number))
    link.replace(attempts / "latest")
    return number
