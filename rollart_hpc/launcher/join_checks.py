"""What is checked before a worker joins a running run: all before anything is started, each refusal in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from nats.js.errors import KeyNotFoundError

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.subjects import MEMBERS_BUCKET
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane.model_identity import compare, describe_model
from rollart_hpc.data_plane.worker import Attempt
from rollart_hpc.errors import ConfigError, NameTakenError, NotReachableError
from rollart_hpc.launcher.plan import WorkerPlan
from rollart_hpc.launcher.preflight import check_guest
from rollart_hpc.slurm.node import node_name
from rollart_hpc.types import Role

_ROLES = (Role.ACTOR_GEN, Role.ENVIRONMENT, Role.REWARD)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What a user wants to add to a run."""

    role: Role
    pool: str
    hardware: str | None
    """None for that of the run's pool of this name."""
    workers: int


def check_request(role: str, pool: str, hardware: str | None, workers: int) -> JoinRequest:
    """What was typed, as far as it can be judged without the run.

    Raises:
        ConfigError: it can never be done.
    """
    if role == Role.ACTOR_TRAIN:
        raise ConfigError(
            "--role actor_train: the trainer's layout (training.*) is settled when a run begins; workers of the roles "
            f"{', '.join(_ROLES)} can join"
        )
    if role not in _ROLES:
        raise ConfigError(f"--role {role}: expected one of {', '.join(_ROLES)}")
    for option, value in (("--pool", pool), ("--hardware", hardware)):
        if value is not None and not _NAME.fullmatch(value):
            raise ConfigError(f"{option} {value!r}: expected a letter and then letters, digits, _ or -, 64 at most")
    if workers < 1:
        raise ConfigError(f"--workers {workers}: expected 1 or more")
    return JoinRequest(role=Role(role), pool=pool, hardware=hardware, workers=workers)


def read_newest(directory: Path) -> Attempt | None:
    """What the newest attempt's processes are told; None while its leader has not written it.

    Raises:
        ConfigError: the file is that of another run or attempt.
        OSError: it cannot be read.
    """
    path = directory / "attempts" / "latest" / "attempt.json"
    try:
        number, attempt = path.parent.readlink().name, Attempt.read(path)
    except (FileNotFoundError, msgspec.DecodeError):  # the leader is at it
        return None
    if str(attempt.number) != number:
        raise ConfigError(
            f"{path}: is of attempt {attempt.number}, expected {number}; it was not written by the leader"
        )
    there = Path(attempt.run_directory)
    if not there.exists() or not there.samefile(directory):
        raise ConfigError(
            f"{path}: is of the run in {there}, not of {directory}; give the run's own directory, which must have the "
            "same path here and at its leader"
        )
    return attempt


def hardware_of(request: JoinRequest, config: RunConfig) -> str:
    """The hardware class of the workers.

    Raises:
        ConfigError: the pool is no one of the run's and --hardware is missing, or contradicts the pool's.
    """
    pool = config.pools.get(request.pool)
    if pool is None and request.hardware is None:
        raise ConfigError(
            f"--pool {request.pool}: the run has the pools {', '.join(config.pools)}; of a new one, --hardware must "
            "say the class"
        )
    if pool is not None and request.hardware not in (None, pool.hardware):
        raise ConfigError(
            f"--hardware {request.hardware}: the run's pool {request.pool} is of class {pool.hardware}; leave it out, "
            "or give another --pool"
        )
    return request.hardware or config.pools[request.pool].hardware


async def check_machine(attempt: Attempt, request: JoinRequest, environment: Mapping[str, str]) -> None:
    """Whether this machine has what the workers need: the run's model, its users' code, devices.

    Raises:
        ConfigError: it does not.
    """
    config = attempt.run_config()
    await check_guest(config, request.role)
    has_model = attempt.model and request.role is not Role.REWARD
    if has_model and (lines := compare(attempt.model, describe_model(config.model.path), "the run's")):
        raise ConfigError(
            f"model.path = {str(config.model.path)!r} is another model on this machine: {'; '.join(lines)}; bring the "
            "run's model there"
        )
    devices_of(request, config, environment)


def devices_of(request: JoinRequest, config: RunConfig, environment: Mapping[str, str]) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each worker; empty where this process was given no devices of its own.

    Raises:
        ConfigError: they do not suffice.
    """
    given = [one for one in environment.get(_DEVICES, "").split(",") if one]
    if request.role is not Role.ACTOR_GEN or not given:
        return []
    each = config.generation.tensor_parallel
    if len(given) < each * request.workers:
        raise ConfigError(
            f"--workers {request.workers}: of {each} GPUs each (generation.tensor_parallel), but {_DEVICES} has "
            f"{len(given)}: {','.join(given)}; ask for more GPUs or fewer workers"
        )
    return [",".join(given[number * each : (number + 1) * each]) for number in range(request.workers)]


async def connect(attempt: Attempt, name: str, *, leader: str) -> Bus:
    """A connection to the run's bus.

    Raises:
        ConfigError: it does not answer from here.
    """
    try:
        return await Bus.connect(attempt.bus, name)
    except NotReachableError as error:
        url = attempt.bus.url
        here = "127.0.0.1" in url or "localhost" in url
        advice = (
            f"a run on one machine listens there alone: join from {leader or 'that machine'}"
            if here
            else f"see that the leader of attempt {attempt.number} runs on {leader or 'its node'}, and that this "
            "machine reaches that address (slurm.interface of the run's config, firewalls)"
        )
        raise ConfigError(f"the run's bus does not answer from {node_name()}: {error}; {advice}") from error


async def check_names(bus: Bus, plans: Sequence[WorkerPlan]) -> None:
    """Whether the names of the workers are free.

    Raises:
        NameTakenError: a member has one.
    """
    members = await bus.bucket(MEMBERS_BUCKET)
    for plan in plans:
        with suppress(KeyNotFoundError):
            await members.get(plan.member_id)
            raise NameTakenError(f"{plan.member_id} is a member of the run already; end that process first")


def plan_guests(request: JoinRequest, hardware: str, origin: str) -> list[WorkerPlan]:
    """The workers, under names that no other process has: ``origin`` is this process's own."""
    return [
        WorkerPlan(
            member_id=f"{request.role}-{origin}-{number}",
            role=request.role,
            hardware=hardware,
            rank=0,
            pool=request.pool,
            index=number,
            guest=True,
        )
        for number in range(request.workers)
    ]


def own_origin(environment: Mapping[str, str]) -> str:
    """Job, node and number of this process: unique among all that live, and fit for names in the bus."""
    job = environment.get("SLURM_JOB_ID")
    parts = [f"j{job}" if job else "", node_name(), str(os.getpid())]
    return "-".join(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in parts if part)
