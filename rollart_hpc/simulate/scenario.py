"""A scenario: a run's config with the figures of the hardware, the environments and the rewards that are emulated.

A scenario file has the sections of a run's config (`rollart_hpc.config.schema`), ``[emulation]``, and
``[configurations.NAME]``: each configuration is the scenario with some keys set differently, as with ``--set``.
``[ratios.NAME]`` compares two of them, ``[plot]`` says how all are drawn. All times are simulated seconds, those of the
config included.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, field_validator, model_validator

from rollart_hpc.config.load import apply_override, parse_config, read_toml, validate
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.section import Line, Name, NonNegativeFloat, PositiveFloat, PositiveInt, Section
from rollart_hpc.errors import ConfigError
from rollart_hpc.resource_plane.figures import known_figures
from rollart_hpc.resource_plane.hardware import HardwareClass, hardware_class
from rollart_hpc.simulate.cost_model import EngineCost, TrainerCost
from rollart_hpc.simulate.distributions import Distribution

_SCALED = {
    "run": ("stop_timeout_s",),
    "rollout": ("generate_timeout_s", "trajectory_timeout_s", "reward_timeout_s", "stall_timeout_s"),
    "weights": ("update_timeout_s",),
}
_SCALED_OF_TASK = ("reset_timeout_s", "step_timeout_s", "turn_timeout_s")


class EmulatedTask(Section):
    """What one task's episodes are like."""

    turns: Distribution
    """Actions of an episode that nothing cuts."""
    prompt_tokens: Distribution
    """Of the first observation; the members of a group share it."""
    observation_tokens: Distribution
    """Of every later one."""
    response_tokens: Distribution
    """Of one turn."""
    reset_s: Distribution
    step_s: Distribution
    reward_s: Distribution
    reset_failures: float = Field(default=0.0, ge=0, lt=1)
    """Share of resets that raise when they would have ended."""
    step_failures: float = Field(default=0.0, ge=0, lt=1)
    """Share of steps that raise."""
    hangs_in_reset: float = Field(default=0.0, ge=0, lt=1)
    """Share of resets that never return."""
    hangs_in_step: float = Field(default=0.0, ge=0, lt=1)
    """Share of episodes with a step that never returns."""
    success: float = Field(default=0.5, ge=0, le=1)
    """Share of successful episodes."""


class EmulatedModel(Section):
    """What is served and trained."""

    name: str
    """Of the figures' models."""
    prefill_efficiency: float = Field(gt=0, le=1)
    """Share of a device's compute that prefill reaches."""
    decode_efficiency: float = Field(gt=0, le=1)
    """Share of a device's memory bandwidth that decoding reaches."""
    train_efficiency: float = Field(gt=0, le=1)
    """Share of a device's compute that training reaches."""
    train_overhead_s: NonNegativeFloat = 0.0
    """What a train step takes beside the tokens: log-probabilities, the optimizer, the step's own start."""

    @field_validator("name")
    @classmethod
    def _is_known(cls, value: str) -> str:
        known_figures().model(value)
        return value


class EmulatedTransfer(Section):
    """How weights get from the trainers to the engines."""

    host_gb_s: PositiveFloat
    """From the trainers' devices to their hosts' memory, all together."""
    push_gb_s: PositiveFloat
    """From all trainers to the store, or to the engines' nodes."""
    pull_gb_s: PositiveFloat
    """From the store into one engine's host memory."""
    load_gb_s: PositiveFloat
    """From host memory into one engine's devices."""


class EmulationSection(Section):
    """What takes how long."""

    time_scale: PositiveFloat
    """Simulated seconds in one real second."""
    tokens_per_id: PositiveInt
    """Tokens that one token id on the bus stands for."""
    steps: PositiveInt
    """Train steps that are measured."""
    warm_up_steps: PositiveInt = 1
    """Train steps before them."""
    model: EmulatedModel
    transfer: EmulatedTransfer
    devices: dict[Name, PositiveInt]
    """Devices of one worker, by pool; of pools with generation or training workers."""
    reward_slots: PositiveInt | None = None
    """Rewards that one reward worker computes at the same time, as on devices of its own; None where a serverless
    platform has room for all."""
    tasks: dict[Name, EmulatedTask]


class Scenario(Section):
    """One configuration of a scenario, ready to be run."""

    name: str
    emulation: EmulationSection
    config: dict[str, Any]
    """Sections of the run's config, in simulated seconds; without the model's path."""

    @field_validator("config")
    @classmethod
    def _is_of_sections(cls, value: dict[str, Any]) -> dict[str, Any]:
        named = {f"{kind}.{name}": one for kind in ("tasks", "pools") for name, one in _items(value.get(kind))}
        for key, section in {**value, **named}.items():
            if not isinstance(section, dict):
                raise ValueError(f"{key} = {section!r}: expected a section with keys of its own")
        for key, advice in _OF_THE_EMULATION.items():
            section, _, name = key.partition(".")
            if name in value.get(section, {}):
                raise ValueError(f"{key} is not a scenario's to set: {advice}; leave it out")
        return value

    @model_validator(mode="after")
    def _every_figure_is_there(self) -> Scenario:
        for task, _ in _items(self.config.get("tasks")):
            if task not in self.emulation.tasks:
                raise ValueError(f"emulation.tasks.{task} is missing: the config has a task of this name; add it")
        pools = dict(_items(self.config.get("pools")))
        for name, pool in pools.items():
            if (pool.get("actor_gen") or pool.get("actor_train")) and name not in self.emulation.devices:
                raise ValueError(f"emulation.devices.{name} is missing: devices of one worker of that pool; add it")
        for name in self.emulation.devices:
            if name not in pools:
                raise ValueError(f"emulation.devices.{name}: there is no pool of this name; there are {list(pools)}")
        return self

    def run_config(self, model: Path, directory: Path) -> RunConfig:
        """The config of the real processes: all its times are real seconds.

        Raises:
            ConfigError: a key or value is wrong.
        """
        data = deepcopy(self.config)
        # More steps than are measured, so that admission does not end within them.
        run = {"name": "emulated", "checkpoint_every": 1_000_000, "steps": 2 * self.num_steps + 1_000}
        data["run"] = {**run, **data.get("run", {}), "directory": str(directory)}
        data["model"] = {**data.get("model", {}), "path": str(model)}
        data["tasks"] = {name: {**_EMULATED_TASK, **task} for name, task in _items(data.get("tasks"))}
        config = parse_config(data, source=self.name)
        scale = self.emulation.time_scale
        whole = config.model_dump(mode="json")
        for section, keys in _SCALED.items():
            whole[section] |= {key: whole[section][key] / scale for key in keys}
        for task in whole["tasks"].values():
            task |= {key: task[key] / scale for key in _SCALED_OF_TASK if task[key] is not None}
        return RunConfig.model_validate(whole, strict=False)

    def engine_cost(self, config: RunConfig, pool: str) -> EngineCost:
        """What one engine of a pool takes.

        Raises:
            ConfigError: a figure of its hardware is missing, or the model does not fit.
        """
        model = self.emulation.model
        return EngineCost(
            model=known_figures().model(model.name),
            hardware=_hardware_of(config, pool),
            devices=self.emulation.devices[pool],
            compute_efficiency=model.prefill_efficiency,
            bandwidth_efficiency=model.decode_efficiency,
        )

    def trainer_cost(self, config: RunConfig, pool: str) -> TrainerCost:
        """What the trainer on a pool takes.

        Raises:
            ConfigError: a figure of its hardware is missing.
        """
        model = self.emulation.model
        return TrainerCost(
            model=known_figures().model(model.name),
            hardware=_hardware_of(config, pool),
            devices=self.emulation.devices[pool],
            compute_efficiency=model.train_efficiency,
            overhead_s=model.train_overhead_s,
        )

    @property
    def num_steps(self) -> int:
        """Train steps that are played, measured or not."""
        return self.emulation.warm_up_steps + self.emulation.steps


def _items(section: Any) -> list[tuple[str, Any]]:
    return list(cast("dict[str, Any]", section).items()) if isinstance(section, dict) else []


_OF_THE_EMULATION = {
    "run.steps": "emulation.warm_up_steps and emulation.steps count the steps",
    "run.directory": "a run that is measured leaves nothing behind",
    "model.path": "emulation.model.name says which model it is",
}
"""Keys of a run's config that a scenario must not have, and why."""
_EMULATED_TASK = {"environment": "rollart_hpc.simulate:emulated", "reward": "rollart_hpc.simulate:emulated"}


def _hardware_of(config: RunConfig, pool: str) -> HardwareClass:
    name = config.pools[pool].hardware
    return hardware_class(name, config.hardware.get(name))


class Ratio(Section):
    """How much faster one configuration is than another, in time per step."""

    slow: Name
    fast: Name
    at_least: PositiveFloat | None = None
    """What is expected."""
    paper: PositiveFloat | None = None
    """What the paper measured."""


class Plot(Section):
    """How the configurations of a scenario are drawn."""

    kind: Literal["bars", "lines"]
    """``lines``: configurations are called SERIES-X, with a number X."""
    title: Line
    x_label: Line = "configuration"
    shows_aborted: bool = False
    """The share of trajectories that were aborted as stale, beside the time per step."""


class ScenarioFile(Section):
    """What a scenario file holds."""

    name: str
    configurations: dict[Name, Scenario]
    ratios: dict[str, Ratio] = Field(default_factory=dict[str, Ratio])
    plot: Plot | None = None

    @model_validator(mode="after")
    def _plot_can_be_drawn(self) -> ScenarioFile:
        if self.plot is not None and self.plot.kind == "bars" and self.plot.shows_aborted:
            raise ValueError('plot.shows_aborted is for kind = "lines"; leave it out')
        if self.plot is not None and self.plot.kind == "lines":
            for name in self.configurations:
                series_of(name)
        return self

    @model_validator(mode="after")
    def _ratios_are_of_configurations(self) -> ScenarioFile:
        for name, ratio in self.ratios.items():
            for configuration in (ratio.slow, ratio.fast):
                if configuration not in self.configurations:
                    known = ", ".join(self.configurations)
                    raise ValueError(f"ratios.{name}: no configuration {configuration!r}; there are {known}")
        return self


def series_of(configuration: str) -> tuple[str, float]:
    """The series and the number of a configuration that is called SERIES-X; ``p`` stands for a decimal point.

    Raises:
        ValueError: it is called otherwise.
    """
    kind, _, text = configuration.rpartition("-")
    try:
        return kind, float(text.replace("p", "."))
    except ValueError:
        raise ValueError(f"configuration {configuration!r}: expected SERIES-X with a number X, as batched-5") from None


PACKAGED = Path(__file__).with_name("scenarios")
"""Scenarios that come with the package, by name."""


def find_scenario(name: str) -> Path:
    """The file of a scenario: one that comes with the package, or a path.

    Raises:
        ConfigError: there is none.
    """
    packaged = PACKAGED / f"{name}.toml"
    if packaged.is_file():
        return packaged
    if Path(name).is_file():
        return Path(name)
    known = ", ".join(sorted(path.stem for path in PACKAGED.glob("*.toml")))
    raise ConfigError(f"no scenario {name!r}; give the path of a TOML file, or one of {known}")


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> ScenarioFile:
    """A scenario file, with ``key.path=value`` overrides in all of its configurations.

    Raises:
        ConfigError: the file cannot be read, a figure is missing, or a key or value is wrong.
    """
    data = read_toml(path, expected="a scenario's TOML file")
    sections = {name: data.pop(name, {}) for name in ("configurations", "ratios")}
    plot = data.pop("plot", None)
    if not isinstance(sections["configurations"], dict) or not sections["configurations"]:
        raise ConfigError(f"{path}: configurations is missing; add [configurations.NAME] with set = [...] for each")
    configurations = {
        name: _configuration(name, section, deepcopy(data), overrides, f"{path}, configuration {name}")
        for name, section in cast("dict[str, Any]", sections["configurations"]).items()
    }
    whole = {"name": path.stem, "configurations": configurations, "ratios": sections["ratios"], "plot": plot}
    return validate(ScenarioFile, whole, str(path))


def _configuration(name: str, section: Any, data: dict[str, Any], overrides: Sequence[str], source: str) -> Scenario:
    for override in (*validate(_Changes, section, source).set, *overrides):
        apply_override(data, override)
    emulation = data.pop("emulation", None)
    if emulation is None:
        raise ConfigError(f"{source}: emulation is missing; add the section [emulation]")
    scenario = validate(Scenario, {"name": name, "emulation": emulation, "config": data}, source)
    config = scenario.run_config(Path("model"), Path("run"))
    for pool_name, pool in config.pools.items():
        if pool.actor_gen:
            scenario.engine_cost(config, pool_name)
        if pool.actor_train:
            scenario.trainer_cost(config, pool_name)
    return scenario


class _Changes(Section):
    set: tuple[str, ...] = Field(default=(), strict=False)
