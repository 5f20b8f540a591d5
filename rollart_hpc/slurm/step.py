"""The srun command of one process: one task on one node, with its own share of CPUs, memory and GPUs.

srun is started from a clean environment (`rollart_hpc.slurm.commands`), so everything is said on its command line.
It passes USR2 on to its task, and kills the task when it gets TERM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollart_hpc.config.slurm import ComponentOptions, ContainerSection
from rollart_hpc.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    """Where a step runs and what it gets."""

    job_id: str
    het_group: int | None
    """Number of the component; None in a job of one component."""
    node: str
    cpus: int
    mem_mb: int
    gpus: int
    gpu_indices: tuple[int, ...] = field(default=())
    """Devices of the node that the process uses, where Slurm hands out whole nodes without counting GPUs."""


def step_argv(name: str, command: Sequence[str], place: StepPlace, options: ComponentOptions) -> list[str]:
    """srun with the command, in the component's container if it has one."""
    skipped = {option.lstrip("-") for option in options.skip}
    flags = {
        "jobid": place.job_id,
        "nodes": "1",
        "ntasks": "1",
        "nodelist": place.node,
        "cpus-per-task": str(place.cpus),
        "job-name": name,
        "mpi": "none",
        "kill-on-bad-exit": "0",
    }
    if place.het_group is not None:
        flags["het-group"] = str(place.het_group)
    # What was not asked for when the job was submitted cannot be shared out; everything else is the step's own.
    if "mem" not in skipped:
        flags["mem"] = f"{place.mem_mb}M"
    asked = "gpus-per-node" if options.gpu_form == "gpus-per-node" else "gres"
    if place.gpus and options.gpu_form != "none" and asked not in skipped:
        flags["gres"] = ":".join(part for part in ("gpu", options.gpu_type, str(place.gpus)) if part)
    given = [f"--{flag}={value}" for flag, value in flags.items()]
    return ["srun", "--exact", "--unbuffered", *given, *_contained(command, place, options.container)]


def with_mounts(options: ComponentOptions, paths: Sequence[Path]) -> ComponentOptions:
    """The options with ``paths`` mounted in the container, at the same place as outside."""
    if options.container is None:
        return options
    for path in paths:
        if set(str(path)) & set(":,"):
            raise ConfigError(f"{path}: a path that is mounted in a container must not have ':' or ','; rename it")
    mounts = [*options.container.mounts, *(f"{path}:{path}" for path in paths)]
    container = options.container.model_copy(update={"mounts": list(dict.fromkeys(mounts))})
    return options.model_copy(update={"container": container})


def _contained(command: Sequence[str], place: StepPlace, container: ContainerSection | None) -> list[str]:
    if container is None:
        return [*_with_devices(place), *command]
    inside = [container.python, *command[1:]]
    if container.runtime == "pyxis":
        mounts = [f"--container-mounts={','.join(container.mounts)}"] if container.mounts else []
        workdir = f"--container-workdir={Path.cwd()}"
        return [
            f"--container-image={container.image}",
            *mounts,
            workdir,
            *container.extra,
            *_with_devices(place),
            *inside,
        ]
    gpus = ["--nv"] if place.gpus else []
    binds = [f"--bind={mount}" for mount in container.mounts]
    workdir = f"--pwd={Path.cwd()}"
    apptainer = ["apptainer", "exec", *gpus, *binds, workdir, *container.extra, container.image]
    return [*_with_devices(place), *apptainer, *inside]


def _with_devices(place: StepPlace) -> list[str]:
    if not place.gpu_indices:
        return []
    return ["env", f"CUDA_VISIBLE_DEVICES={','.join(map(str, place.gpu_indices))}"]
