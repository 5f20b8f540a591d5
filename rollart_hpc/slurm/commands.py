"""Slurm's commands, run the one right way: bounded, without the surrounding job's variables, errors whole.

Inside a job, SLURM_* and SBATCH_* of that job would change what a nested sbatch or srun does (its sizes, even the
number of het components). Every command is therefore run in `clean_environment`.

A preemption sends TERM to every process of the batch script, the commands of its leader included, at the one moment
when their answer counts. Every command is therefore started with the signals of a notice blocked.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from rollart_hpc.errors import NoSlurmError, SlurmError

LEAKING_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SQUEUE_",
    "SACCT_",
    "SINFO_",
    "SCANCEL_",
    "PMI",
)
LEAKING_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"})
KEPT_NAMES = frozenset({"SLURM_CONF", "SLURM_CLUSTERS"})
_NOTICES = (signal.SIGTERM, signal.SIGUSR2)
_UNREACHABLE = ("Unable to contact slurm controller", "Connection refused", "Unable to establish configuration source")


def leaking_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Names of the variables that belong to the surrounding job and must not reach a Slurm command."""
    names = os.environ if environment is None else environment
    leaking = [name for name in names if name.startswith(LEAKING_PREFIXES) or name in LEAKING_NAMES]
    return sorted(name for name in leaking if name not in KEPT_NAMES)


def clean_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without the surrounding job's variables."""
    source = os.environ if environment is None else environment
    leaking = set(leaking_variables(source))
    return {name: value for name, value in source.items() if name not in leaking}


class Answer(NamedTuple):
    """What a Slurm command said while it succeeded."""

    text: str
    warnings: str


def run_slurm(
    program: str,
    *arguments: str,
    deadline_s: float = 30.0,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What ``program`` prints; see `ask_slurm`."""
    return ask_slurm(program, *arguments, deadline_s=deadline_s, text=text, environment=environment).text


def ask_slurm(
    program: str,
    *arguments: str,
    deadline_s: float = 30.0,
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """What ``program`` prints, with the warnings on its standard error.

    ``text`` goes to its standard input, ``environment`` replaces this process's own.

    Raises:
        NoSlurmError: the program is not on PATH, or Slurm's controller does not answer.
        SlurmError: it refused or failed, or did not end within the deadline.
    """
    require(program, environment)
    with _notices_blocked():
        process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=clean_environment(environment),
        )
    with process:
        try:
            output, said = process.communicate(text, timeout=deadline_s)
        except subprocess.TimeoutExpired as error:
            words = _joined(_decoded(error.stderr), _decoded(error.stdout))
            raise NoSlurmError(
                f"{program} did not end within {deadline_s:g} s: {words or 'it said nothing'}; Slurm's controller is "
                "busy or down, or SLURM_CONF names no file; try again"
            ) from None
        finally:
            process.kill()
    if process.returncode:
        words = _joined(said, output)
        kind = NoSlurmError if any(mark in words for mark in _UNREACHABLE) else SlurmError
        raise kind(f"{program} ended with exit code {process.returncode}: {words or 'it said nothing'}")
    return Answer(output, said.strip())


@contextmanager
def _notices_blocked() -> Generator[None]:
    """A process that is started in here never sees a notice; this one sees it a moment later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _joined(*outputs: str) -> str:
    return "\n".join(output.strip() for output in outputs if output.strip())


def _decoded(output: bytes | str | None) -> str:
    """What was read until a deadline: bytes, whatever the encoding of the process."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def require(program: str, environment: Mapping[str, str] | None = None) -> None:
    """Raises NoSlurmError when ``program`` is not on PATH: this process's, or that of ``environment``."""
    source = os.environ if environment is None else environment
    if shutil.which(program, path=source.get("PATH", os.defpath)) is None:
        raise NoSlurmError(
            f"{program} is not on PATH: no Slurm here; run this on a login node, or make a Slurm of this machine with "
            "`rollart-hpc cluster up`"
        )
