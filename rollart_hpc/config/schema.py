"""The run's configuration: one TOML file, these models, nothing else.

Unknown keys are refused. Everything has a default but the model, the pools and the tasks. Units stand in
the names. The models are frozen: a run's config never changes under it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)]
EntryPoint = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]


class Section(BaseModel):
    """Base of all sections: unknown keys forbidden, frozen, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class RunSection(Section):
    """What the run is called, where it lives and how long it goes."""

    name: Name
    steps: PositiveInt
    """Optimizer steps of the whole run; a resumed run goes on to this number."""
    directory: Path | None = Field(default=None, strict=False)
    """Shared file system; ``runs/<name>`` when absent."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    stop_timeout_s: PositiveFloat = 12.0
    """What a run that is asked to stop has for ending its train step and saving."""
    checkpoint_every: PositiveInt = 20
    """Steps between checkpoints; one is always written at the end."""

    def path(self) -> Path:
        """The run directory, absolute."""
        return (self.directory or Path("runs") / self.name).expanduser().absolute()


class ModelSection(Section):
    """The model to train: a directory in Hugging Face format (Qwen3 architecture)."""

    path: Path = Field(strict=False)
    """Kept absolute."""
    max_context: PositiveInt = 2048
    """Tokens of prompt and response together; also the longest sequence that is trained."""
    dtype: Literal["float32", "bfloat16"] = "float32"

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()


class AlgorithmSection(Section):
    """GRPO with PPO clipping at token level (paper section 7; DeepSeekMath equation 3; DAPO clip-higher)."""

    normalize_std: bool = True
    """Divide the group's advantages by its standard deviation plus `std_floor`."""
    std_floor: NonNegativeFloat = 0.1
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.28
    correction: Literal["sampler_ratio", "truncated", "decoupled"] = "sampler_ratio"
    """How stale tokens are corrected; see `rollart_hpc.algorithms.losses`."""
    importance_cap: PositiveFloat = 2.0
    """Upper bound of the importance weight in the modes truncated and decoupled."""
    denominator: Literal["task", "global"] = "task"
    """Token means are taken per task and summed, or over the whole batch at once."""


class TrainingSection(Section):
    """The trainer: Megatron-core, tensor x pipeline x data parallel ranks."""

    tensor_parallel: PositiveInt = 1
    pipeline_parallel: PositiveInt = 1
    data_parallel: PositiveInt = 1
    micro_batch_tokens: PositiveInt = 16384
    """Packed tokens of one micro-batch, at least one sequence."""
    learning_rate: PositiveFloat = 1e-6
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    weight_decay: NonNegativeFloat = 0.0
    clip_grad_norm: PositiveFloat = 1.0

    @property
    def world_size(self) -> int:
        """Number of trainer ranks."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


class GenerationSection(Section):
    """Sampling and the inference engine."""

    engine: Literal["vllm", "echo"] = "vllm"
    """``echo`` answers at once with the prompt's own tokens: for benchmarks of everything but the engine."""
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_concurrent: PositiveInt = 256
    """Requests that one engine batches at most."""
    kv_cache_mb: PositiveInt | None = None
    """Megabytes of KV cache; None lets the engine measure (GPU) or takes 256 (CPU)."""
    block_size: PositiveInt = 32
    tensor_parallel: PositiveInt = 1


class RolloutSection(Section):
    """How trajectories are admitted, bounded and cut off (paper section 6)."""

    alpha: Annotated[int, Field(ge=0)] = 1
    """Staleness bound: a trajectory trained at version n was started by version n - alpha or later."""
    groups_per_step: PositiveInt
    """Groups of one training batch, shared among the tasks by weight."""
    trajectories_per_worker: PositiveInt = 512
    """Slots of one environment worker."""
    generate_timeout_s: PositiveFloat = 120.0
    """One turn's generation, suspensions included; after it another generation worker is tried."""
    trajectory_timeout_s: PositiveFloat = 600.0
    """A whole trajectory, from its ticket to its score."""
    reward_timeout_s: PositiveFloat = 30.0
    stall_timeout_s: PositiveFloat = 1800.0
    """The run ends with a report when no trajectory came back for so long."""
    max_refills: Annotated[int, Field(ge=0)] = 3
    """How often each place of a group may be filled again after a failure before the whole group is given up
    and its seed poisoned."""
    buffer_mb: PositiveInt = 1024
    """Bytes that finished, untrained trajectories may hold; no group is opened above it."""


class TaskSection(Section):
    """One task: an environment, a reward function and its share of every batch."""

    environment: EntryPoint
    environment_args: dict[str, Any] = {}
    reward: EntryPoint
    reward_url: str | None = None
    """HTTP endpoint of a serverless deployment of the reward; the local pool is its fallback."""
    tag: Name | None = None
    """Hardware affinity goes by it; the task's name when absent."""
    weight: PositiveFloat = 1.0
    group_size: PositiveInt = 8
    redundancy: Annotated[int, Field(ge=0)] = 0
    """Members started beyond the group's size; the first ones to finish make the group."""
    max_turns: PositiveInt = 1
    max_new_tokens: PositiveInt = 256
    """Of one turn."""
    reset_timeout_s: PositiveFloat = 60.0
    step_timeout_s: PositiveFloat = 30.0
    drop_truncated: bool = False
    """Trajectories cut by the context or the turn limit end as truncated instead of being trained."""
    num_seeds: PositiveInt | None = None
    """Seeds 0..num_seeds-1 are played in a shuffled order, again and again; None never repeats one."""


class PoolSection(Section):
    """Workers on one class of hardware."""

    hardware: Name
    """Hardware class: H800, H20, cpu, ..."""
    actor_train: Annotated[int, Field(ge=0)] = 0
    actor_gen: Annotated[int, Field(ge=0)] = 0
    environment: Annotated[int, Field(ge=0)] = 0
    reward: Annotated[int, Field(ge=0)] = 0


class WeightsSection(Section):
    """The weight store (Mooncake) between trainer and generation workers (paper section 6.3)."""

    bucket_mb: PositiveInt = 256
    versions_kept: Annotated[int, Field(ge=2)] = 4
    update_timeout_s: PositiveFloat = 120.0
    """Each step of a worker's update; one that takes longer is expelled and started again."""
    store_mb: Annotated[int, Field(ge=64)] | None = None
    """Memory of the store; None takes what `versions_kept` + 1 versions of the model need."""


class RunConfig(Section):
    """A whole run."""

    run: RunSection
    model: ModelSection
    algorithm: AlgorithmSection = AlgorithmSection()
    training: TrainingSection = TrainingSection()
    generation: GenerationSection = GenerationSection()
    rollout: RolloutSection
    weights: WeightsSection = WeightsSection()
    affinity: dict[str, str] = {}
    """Hardware class by tag for generation; the key ``default`` serves every other tag."""
    pools: dict[Name, PoolSection]
    tasks: dict[Name, TaskSection]

    @field_validator("tasks", "pools")
    @classmethod
    def _not_empty(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not value:
            raise ValueError("at least one is needed")
        return value

    @model_validator(mode="after")
    def _groups_have_variance(self) -> RunConfig:
        for name, task in self.tasks.items():
            if task.group_size == 1:
                raise ValueError(
                    f"tasks.{name}.group_size is 1: a group of one has no standard deviation and every "
                    "advantage would be 0; set it to 2 or more"
                )
            if task.max_new_tokens >= self.model.max_context:
                raise ValueError(
                    f"tasks.{name}.max_new_tokens is {task.max_new_tokens}, model.max_context only "
                    f"{self.model.max_context}: no room is left for a prompt; lower the first or raise the second"
                )
        return self

    @model_validator(mode="after")
    def _roles_are_staffed(self) -> RunConfig:
        for role in ("actor_gen", "environment", "reward"):
            if not self.num_workers(role):
                raise ValueError(f"no pool has a worker of role {role}; set {role} = 1 in one of {list(self.pools)}")
        ranks, layout = self.num_workers("actor_train"), self.training
        if ranks != layout.world_size:
            raise ValueError(
                f"the pools have {ranks} actor_train workers, training.tensor_parallel x pipeline_parallel x "
                f"data_parallel is {layout.world_size}; make them equal"
            )
        return self

    @model_validator(mode="after")
    def _every_task_gets_a_group(self) -> RunConfig:
        for name, groups in self.groups_per_task().items():
            if groups == 0:
                raise ValueError(
                    f"tasks.{name} gets no group of rollout.groups_per_step = {self.rollout.groups_per_step} by its "
                    f"weight {self.tasks[name].weight:g}; raise one of the two"
                )
        return self

    def num_workers(self, role: str) -> int:
        """Workers of a role over all pools."""
        return sum(int(getattr(pool, role)) for pool in self.pools.values())

    def groups_per_task(self) -> dict[str, int]:
        """Groups of each batch by task: the weights, apportioned by largest remainder."""
        total = sum(task.weight for task in self.tasks.values())
        exact = {name: self.rollout.groups_per_step * task.weight / total for name, task in self.tasks.items()}
        quota = {name: math.floor(share) for name, share in exact.items()}
        by_remainder = sorted(exact, key=lambda name: (quota[name] - exact[name], name))
        for name in by_remainder[: self.rollout.groups_per_step - sum(quota.values())]:
            quota[name] += 1
        return quota

    def tag_of(self, task: str) -> str:
        """The tag under which a task's requests are routed."""
        return self.tasks[task].tag or task
