"""What Slurm is asked for: options of a component, and of the whole job.

A run has one component per pool. Options come from four places, the later one wins: the site profile's
``[slurm]``, its ``[hardware.CLASS]``, the run's ``[slurm]``, the run's ``[pools.NAME.slurm]``; see
`rollart_hpc.config.site`. The lists ``extra``, ``skip`` and ``setup`` add up instead.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from rollart_hpc.config.section import Line, Name, PositiveFloat, PositiveInt, Section
from rollart_hpc.config.time_limit import parse_time_limit

StepRole = Literal["leader", "controller", "actor_train", "actor_gen", "environment", "reward"]
GpuForm = Literal["gres", "gpus-per-node", "none"]
RequeueMode = Literal["auto", "requeue", "chain", "none"]
Text = Line
"""It becomes one line of the batch script."""


class ResourcesSection(Section):
    """What one process of a role gets: a step's share of its node."""

    cpus: PositiveInt | None = None
    mem_gb: PositiveFloat | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None


class ContainerSection(Section):
    """The container that a component's workers run in; the leader always runs outside."""

    runtime: Literal["pyxis", "apptainer"]
    image: Text
    mounts: list[Text] = []
    """HOST[:CONTAINER[:ro]]; the run's directory, the model and the submission directory are always mounted."""
    python: Text = "python3"
    """The interpreter inside that has rollart_hpc."""
    extra: list[Text] = []
    """More arguments of srun (pyxis) or `apptainer exec`."""


class ComponentOptions(Section):
    """Options of one component; what is None is left to Slurm, to the site or to the computed default."""

    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    nodes: PositiveInt | None = None
    """1 when absent; the pool's workers are spread evenly over them."""
    time: Text | None = None
    constraint: Text | None = None
    reservation: Text | None = None
    exclusive: bool | Literal["user", "mcs"] | None = None
    gpu_form: GpuForm | None = None
    """How the site wants GPUs asked for; gres when absent, none where whole nodes are given."""
    gpu_type: Text | None = None
    """The type in the request, such as h800; none asks for any."""
    mem_gb: PositiveFloat | None = None
    """Memory per node; the sum of what its processes get when absent."""
    cpus_per_node: PositiveInt | None = None
    """CPUs per node; the sum of what its processes get when absent."""
    licenses: Text | None = None
    nodelist: Text | None = None
    exclude: Text | None = None
    mail_type: Text | None = None
    mail_user: Text | None = None
    dependency: Text | None = None
    comment: Text | None = None
    extra: list[Text] = []
    """Further sbatch options as they stand, such as --switches=1."""
    skip: list[Text] = []
    """Names of sbatch options that this site refuses, such as mem."""
    resources: dict[StepRole, ResourcesSection] = {}
    container: ContainerSection | None = None

    @field_validator("time", mode="before")
    @classmethod
    def _unambiguous(cls, value: object) -> str | None:
        if isinstance(value, datetime.time):  # TOML's own type for 01:30:00 without quotes
            value = value.isoformat()
        if value is None or (isinstance(value, int | str) and not isinstance(value, bool)):
            return None if value is None else parse_time_limit(value)
        raise ValueError(f"{value}: expected text such as '01:30:00', or whole minutes")

    @field_validator("extra")
    @classmethod
    def _is_option(cls, value: list[str]) -> list[str]:
        for option in value:
            if not option.startswith("-"):
                raise ValueError(f"{option!r} is no sbatch option; it starts with a dash, for example --switches=1")
        return value


class SlurmSection(ComponentOptions):
    """The job as a whole, and the options that all components share."""

    job_name: Text | None = None
    """The run's name when absent."""
    leader: Name | None = None
    """The pool on whose first node the leader runs; the first one without GPU workers when absent."""
    setup: list[Text] = []
    """Lines of the batch script before the leader starts: module loads, exports."""
    python: Text | None = None
    """The interpreter on the nodes; the submitting one when absent."""
    template: Path | None = Field(default=None, strict=False)
    """The batch script's Jinja2 template, instead of the one that ships; in a site profile relative to its folder."""
    interface: Text | None = None
    """Network interface whose address services listen on, such as ib0; what Slurm knows the node by when absent."""
    notice_s: Annotated[int, Field(gt=0, le=65535)] = 120
    """How long before the end of the time limit, and of a preemption where the site allows it, the run is told."""
    requeue: RequeueMode = "auto"
    """How a run that was stopped goes on: its job back into the queue, or the same script submitted again (chain); auto
    requeues unless a preempted job is cancelled here; none leaves it to the user."""


DEFAULT_RESOURCES: dict[StepRole, ResourcesSection] = {
    "leader": ResourcesSection(cpus=4, mem_gb=32.0, gpus=0),
    "controller": ResourcesSection(cpus=4, mem_gb=16.0, gpus=0),
    "actor_train": ResourcesSection(cpus=8, mem_gb=64.0, gpus=1),
    "actor_gen": ResourcesSection(cpus=8, mem_gb=64.0),
    "environment": ResourcesSection(cpus=8, mem_gb=16.0, gpus=0),
    "reward": ResourcesSection(cpus=4, mem_gb=8.0, gpus=0),
}
"""For one process on a real node; actor_gen takes generation.tensor_parallel GPUs. The leader's memory holds the
weight store (see `rollart_hpc.launcher.services.store_size_mb`)."""


class SiteProfile(Section):
    """What is the same for every run on a cluster (TOML)."""

    slurm: SlurmSection = SlurmSection()
    hardware: dict[Name, ComponentOptions] = {}
    """By hardware class of the pools: H800, H20, cpu, ...; case does not matter."""

    @field_validator("hardware")
    @classmethod
    def _one_of_a_name(cls, value: dict[str, ComponentOptions]) -> dict[str, ComponentOptions]:
        seen: dict[str, str] = {}
        for name in value:
            other = seen.setdefault(name.casefold(), name)
            if other != name:
                raise ValueError(f"classes {other} and {name} are one, since case does not matter; merge the two")
        return value
