"""The run's directory: created once, owned by one leader at a time, one sub-directory per attempt.

RUN/config.json   the config with all overrides     RUN/metrics.jsonl, tensorboard/, summary.json
RUN/journal.bin   what happened to trajectories      RUN/checkpoints/step-N/
RUN/attempts/N/   attempt.json, logs/ of each process; RUN/attempts/latest points to the newest
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.config.load import parse_config
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import ConfigError

_CONFIG = "config.json"
_LOCK = ".lock"


def create(config: RunConfig) -> Path:
    """Makes the directory of a new run and keeps its config in it.

    Raises:
        ConfigError: it exists, or cannot be made.
    """
    directory = config.run.path()
    if directory.exists():
        raise ConfigError(f"run.directory {str(directory)!r} exists already; resume it or choose another")
    try:
        directory.mkdir(parents=True)
        (directory / _CONFIG).write_text(config.model_dump_json(indent=2))
    except OSError as error:
        raise ConfigError(f"run.directory {str(directory)!r}: {error.strerror}; choose another") from error
    return directory


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


@contextmanager
def owned(directory: Path) -> Generator[None]:
    """Holds the run's lock while the block runs.

    Raises:
        ConfigError: another leader holds it.
    """
    with (directory / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{directory}: another process runs this; wait for it or end it first") from None
        yield


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
