"""The run's configuration: one TOML file, these models, nothing else.

Unknown keys are refused. Everything has a default but the model, the pools and the tasks. Units stand in
the names. The models are frozen: a run's config never changes under it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rollart_hpc.config.node import ImagesSection, NodeSettings, SandboxSection
from rollart_hpc.config.registered import ENVIRONMENTS, REWARDS, entry_point_of
from rollart_hpc.config.rollout import RolloutSection
from rollart_hpc.config.section import (
    EntryPoint,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)
from rollart_hpc.config.serverless import HTTP, ServerlessSection, no_trigger, with_triggers
from rollart_hpc.config.slurm import ComponentOptions, SlurmSection
from rollart_hpc.config.task_mix import TaskMix


class RunSection(Section):
    """What the run is called, where it lives and how long it goes."""

    name: Name
    steps: PositiveInt
    """Optimizer steps of the whole run; a resumed run goes on to this number."""
    directory: Path | None = Field(default=None, strict=False)
    """Shared file system; ``runs/<name>`` when absent."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    stop_timeout_s: PositiveFloat = 60.0
    """What a run that is asked to stop has for ending its train step and saving."""
    max_failures: PositiveInt = 3
    """The run ends when so many attempts in a row failed the same way, or twice as many in different ways, and none
    of them got a step further."""
    checkpoint_every: PositiveInt = 20
    """Steps between checkpoints; one is always written at the end."""
    checkpoint_keep_every: PositiveInt | None = None
    """Checkpoints whose step is a multiple are never removed; None keeps the two newest alone."""

    @model_validator(mode="after")
    def _kept_checkpoints_are_written(self) -> RunSection:
        every, kept = self.checkpoint_every, self.checkpoint_keep_every
        if kept is not None and kept % every:
            raise ValueError(
                f"run.checkpoint_keep_every is {kept}, which is no multiple of run.checkpoint_every = {every}; "
                f"set it to one, such as {-(-kept // every) * every}"
            )
        return self

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
    routing: EntryPoint | None = None
    """A class of the user's own that chooses each request's worker (`rollart_hpc.data_plane.routing.RoutingPolicy`)."""
    deterministic: bool = False
    """A turn's tokens and logprobs depend on the weights, its prompt, `run.seed`, trajectory id and turn number alone,
    bit for bit on one kind of hardware: each engine generates one request at a time, without a prefix cache."""


class TaskSection(Section):
    """One task: an environment, a reward function and its share of every batch."""

    environment: str
    """``module:Class``, or the name of a registered one, for which its ``module:Class`` is put here."""
    environment_args: dict[str, Any] = {}
    dataset: Path | None = Field(default=None, strict=False)
    """A JSONL file; the environment's ``task`` is the row with the number of the episode's seed, modulo their number,
    which ``num_seeds`` is when absent. Kept absolute."""
    reward: str
    """``module:function``, or the name of a registered one."""
    reward_args: dict[str, Any] = {}
    """Keyword arguments of the reward function, after the episode."""
    reward_url: str | None = None
    """A serverless deployment of the reward, an HTTP URL or one that ``[serverless]`` has; the local pool is its
    fallback."""
    reward_payload: Literal["text", "tokens", "reference"] = "text"
    """What the deployment gets: the episode, its token ids and mask in place of the turns, or the name of a file in the
    run's directory that holds the episode."""
    tag: Name | None = None
    """Hardware affinity goes by it; the task's name when absent."""
    weight: NonNegativeFloat = 1.0
    """Of the task's groups in the batches, against the other tasks'; 0 leaves the task out."""
    group_size: PositiveInt = 8
    redundancy: NonNegativeInt | NonNegativeFloat | Literal["auto"] = 0
    """Members started beyond the group's size; the first ones to finish make the group. An integer counts them, a
    number with a point is their share of ``group_size``, rounded up; ``auto`` follows the measured tail and failures.
    """
    redundancy_budget: NonNegativeFloat = 0.5
    """With ``auto``: at most this share of ``group_size``."""
    max_turns: PositiveInt = 1
    max_new_tokens: PositiveInt = 256
    """Of one turn."""
    reset_timeout_s: PositiveFloat = 60.0
    step_timeout_s: PositiveFloat = 30.0
    turn_timeout_s: PositiveFloat | None = None
    """One whole turn, generation and step; None takes `rollout.generate_timeout_s` and ``step_timeout_s`` together."""
    drop_truncated: bool = False
    """Trajectories cut by the context or the turn limit end as truncated instead of being trained."""
    num_seeds: PositiveInt | None = None
    """Seeds 0..num_seeds-1 are played in a shuffled order, again and again; None never repeats one."""

    @field_validator("environment")
    @classmethod
    def _registered_environment(cls, value: str) -> str:
        return entry_point_of(value, ENVIRONMENTS)

    @field_validator("reward")
    @classmethod
    def _registered_reward(cls, value: str) -> str:
        return entry_point_of(value, REWARDS)

    @field_validator("dataset")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value.expanduser().absolute() if value is not None else None

    def redundant_members(self) -> int:
        """Members beyond the group's size, at the start of a run where ``redundancy`` is ``auto``."""
        if self.redundancy == "auto":
            return 0
        if isinstance(self.redundancy, int):
            return self.redundancy
        return math.ceil(self.redundancy * self.group_size)

    def most_redundant(self) -> int:
        """The most members beyond the group's size that there can be."""
        if self.redundancy == "auto":
            return math.floor(self.redundancy_budget * self.group_size)
        return self.redundant_members()


class PoolSection(Section):
    """Workers on one class of hardware."""

    hardware: Name
    """Hardware class: H800, H20, cpu, ..."""
    actor_train: Annotated[int, Field(ge=0)] = 0
    actor_gen: Annotated[int, Field(ge=0)] = 0
    environment: Annotated[int, Field(ge=0)] = 0
    reward: Annotated[int, Field(ge=0)] = 0
    slurm: ComponentOptions = ComponentOptions()
    """What its component of the Slurm job asks for."""


class WorkersSection(Section):
    """Worker classes of the user's own, subclasses of the role's; each serves all workers of its role."""

    actor_train: EntryPoint | None = None
    actor_gen: EntryPoint | None = None
    environment: EntryPoint | None = None
    reward: EntryPoint | None = None


class HardwareSection(Section):
    """Figures of a hardware class; what is absent is taken from `rollart_hpc.resource_plane.hardware`."""

    tflops: PositiveFloat | None = None
    """Dense BF16 of one device."""
    memory_gb: PositiveFloat | None = None
    memory_gb_s: PositiveFloat | None = None
    """Memory bandwidth of one device."""
    relative_cost: PositiveFloat | None = None
    """Of one device, in any unit that all classes share."""


class ProfilerSection(Section):
    """The online profiler and what its figures are used for (paper section 9)."""

    affinity: Literal["static", "advise", "auto"] = "static"
    """Requests go where the declarations say; ``advise`` also says which mapping would be faster; ``auto`` applies
    it."""
    min_gain: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """A mapping is better when it shortens a step's generation by this share."""
    settle_steps: PositiveInt = 2
    """It is applied when it was better in so many steps in a row, and no further one until as many have passed."""


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
    slurm: SlurmSection = SlurmSection()
    sandbox: SandboxSection = SandboxSection()
    images: ImagesSection = ImagesSection()
    workers: WorkersSection = WorkersSection()
    profiler: ProfilerSection = ProfilerSection()
    hardware: dict[Name, HardwareSection] = {}
    """Figures by hardware class."""
    affinity: dict[str, str] = {}
    """Hardware class by tag for generation; the key ``default`` serves every other tag."""
    serverless: dict[str, ServerlessSection] = {}
    """Endpoint by the URL that a task's ``reward_url`` or a worker class (`register_serverless`) declares."""
    pools: dict[Name, PoolSection]
    tasks: dict[Name, TaskSection]

    @field_validator("tasks", "pools")
    @classmethod
    def _not_empty(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not value:
            raise ValueError("at least one is needed")
        return value

    @field_validator("serverless", mode="before")
    @classmethod
    def _triggers_are_http(cls, value: object) -> object:
        return with_triggers(value)

    @model_validator(mode="after")
    def _reward_urls_have_endpoints(self) -> RunConfig:
        for name, task in self.tasks.items():
            url = task.reward_url
            if url is not None and url not in self.serverless and not url.startswith(HTTP):
                advice = no_trigger(url) if "://" in url else "expected http://, https:// or a URL of [serverless]"
                raise ValueError(f"tasks.{name}.reward_url = {url!r}: {advice}")
        return self

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
    def _some_task_is_played(self) -> RunConfig:
        if not any(task.weight for task in self.tasks.values()):
            raise ValueError(
                f"the weights of all tasks ({', '.join(self.tasks)}) are 0: no batch has a group; set "
                "tasks.NAME.weight above 0 for one of them"
            )
        return self

    @model_validator(mode="after")
    def _groups_fit_into_the_slots(self) -> RunConfig:
        slots = self.num_workers("environment") * self.rollout.trajectories_per_worker
        for name, task in self.tasks.items():
            members = task.group_size + task.most_redundant()
            if members > slots:
                raise ValueError(
                    f"tasks.{name}: a group has up to {members} members (group_size = {task.group_size}, redundancy = "
                    f"{task.redundancy!r}), the environment workers have room for {slots}; lower one of the two, or "
                    "raise rollout.trajectories_per_worker or the number of environment workers"
                )
        return self

    @model_validator(mode="after")
    def _a_turn_fits_into_a_trajectory(self) -> RunConfig:
        whole_s = self.rollout.trajectory_timeout_s
        for name in self.tasks:
            if whole_s < (turn_s := self.turn_timeout_s(name)):
                how = "turn_timeout_s" if self.tasks[name].turn_timeout_s else "generate_timeout_s + step_timeout_s"
                raise ValueError(
                    f"rollout.trajectory_timeout_s is {whole_s:g}, shorter than one turn of tasks.{name} "
                    f"({turn_s:g} s, {how}); raise it, or set tasks.{name}.turn_timeout_s to what one turn may take"
                )
        return self

    def num_workers(self, role: str) -> int:
        """Workers of a role over all pools."""
        return sum(int(getattr(pool, role)) for pool in self.pools.values())

    def node_settings(self) -> NodeSettings:
        """What the children of this run's workers get of it."""
        return NodeSettings(sandbox=self.sandbox, images=self.images, run_directory=self.run.path())

    def endpoint_of(self, declared: str) -> ServerlessSection:
        """How the endpoint of a declared URL is called."""
        return self.serverless.get(declared) or ServerlessSection(url=declared)

    def task_mix(self) -> TaskMix:
        """How many groups of each task the batches have."""
        return TaskMix({name: task.weight for name, task in self.tasks.items()}, self.rollout.groups_per_step)

    def turn_timeout_s(self, task: str) -> float:
        """What one whole turn of a task may take."""
        section = self.tasks[task]
        return section.turn_timeout_s or self.rollout.generate_timeout_s + section.step_timeout_s

    def tag_of(self, task: str) -> str:
        """The tag under which a task's requests are routed."""
        return self.tasks[task].tag or task
