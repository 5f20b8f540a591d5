"""Checks that need more than the config's text: files, imports, room. All before anything is started."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from rollart_hpc.config.resolve import resolve
from rollart_hpc.config.schema import ModelSection, RunConfig
from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.control_plane.checkpoint import find_newest
from rollart_hpc.control_plane.model_identity import check_identity, identify_model
from rollart_hpc.control_plane.node_preparation import require_isolation
from rollart_hpc.data_plane.backends.megatron.architecture import check_layout, read_architecture
from rollart_hpc.data_plane.environment_host import EnvironmentSpec, try_environment
from rollart_hpc.errors import ConfigError, EnvironmentFault, NoSandboxError
from rollart_hpc.interfaces import EnvironmentProperties
from rollart_hpc.launcher.affinity_faults import affinity_faults
from rollart_hpc.launcher.reward_faults import reward_faults, secret_faults
from rollart_hpc.launcher.services import store_size_mb
from rollart_hpc.launcher.worker_faults import worker_faults
from rollart_hpc.types import Role

_TOKENIZER_FILES = ("tokenizer.json",)
_MIN_FREE_BYTES = 256 << 20


def check_run(config: RunConfig, *, resuming: bool = False, leads_here: bool = True) -> list[str]:
    """Checks everything about a run that can be known before it starts; returns what is odd but allowed.

    Args:
        config: the run.
        resuming: its directory exists.
        leads_here: its services will run on this machine.

    Raises:
        ConfigError: lists every fault, one a line, each with what to change.
    """
    observations, environment_faults = asyncio.run(_try_environments(config, sandboxes_open_here=leads_here))
    faults = [
        *_model_faults(config.model),
        *environment_faults,
        *_task_faults(config),
        *reward_faults(config),
        *affinity_faults(config),
        *worker_faults(config),
        *_directory_faults(config.run.path(), resuming, go_on="resume" if leads_here else "submit"),
    ]
    if not faults:
        faults = [*_layout_faults(config), *_prompt_faults(config, observations), *_identity_faults(config)]
        faults += _memory_faults(config) if leads_here else []
    if faults:
        raise ConfigError("\n".join(faults))
    return list(_oddities(config))


async def check_guest(config: RunConfig, role: Role) -> None:
    """Checks what a worker that joins a running run needs on its machine: the model's files and the user's code.

    Raises:
        ConfigError: every fault, in one line.
    """
    faults = list(worker_faults(config))
    faults += _task_faults(config) if role is Role.REWARD else _model_faults(config.model)
    if role in {Role.ENVIRONMENT, Role.REWARD}:
        faults += secret_faults(config)
    if role is Role.ENVIRONMENT:
        faults += (await _try_environments(config))[1]
    if faults:
        raise ConfigError("; ".join(line.strip() for fault in faults for line in fault.splitlines()))


def _oddities(config: RunConfig) -> Iterator[str]:
    if config.generation.top_p < 1:
        yield (
            f"generation.top_p = {config.generation.top_p:g}: the sampler's logprobs are those of the cut "
            "distribution, the trainer's are not, so that every ratio is off; 1.0 trains without this bias"
        )


async def _try_environments(config: RunConfig, *, sandboxes_open_here: bool = True) -> tuple[dict[str, str], list[str]]:
    """First observations of the light environments by task, and the faults of all; user code runs in a child."""
    observations: dict[str, str] = {}
    faults: list[str] = []
    properties: dict[str, EnvironmentProperties] = {}
    for name, task in config.tasks.items():
        try:
            tried = await try_environment(EnvironmentSpec.of_task(task))
        except (ConfigError, EnvironmentFault) as error:
            faults.append(f"tasks.{name}.environment = {task.environment!r}: {error}")
        else:
            properties[name] = tried.properties
            observations |= {name: tried.first.observation} if tried.first is not None else {}
    if sandboxes_open_here:
        try:
            await require_isolation(properties, config.node_settings())
        except NoSandboxError as error:
            faults.append(str(error))
    return observations, faults


def _prompt_faults(config: RunConfig, observations: Mapping[str, str]) -> Iterator[str]:
    chat = ChatFormat(config.model.path)
    for name, observation in observations.items():
        length = len(chat.first_observation(observation)) // 4
        if length >= config.model.max_context:
            yield (
                f"tasks.{name}: its first prompt has {length} tokens, model.max_context is {config.model.max_context}; "
                "raise the latter or shorten the observation"
            )


def _layout_faults(config: RunConfig) -> Iterator[str]:
    """What Megatron can not train in this layout."""
    try:
        check_layout(read_architecture(config.model.path), config.model, config.training)
    except ConfigError as error:
        yield from str(error).splitlines()


def _memory_faults(config: RunConfig) -> Iterator[str]:
    needed_mb, available_mb = store_size_mb(config), psutil.virtual_memory().available >> 20
    if needed_mb > available_mb:
        yield (
            f"the weight store needs {needed_mb} MB, {available_mb} MB of memory are available; lower "
            "weights.versions_kept or weights.store_mb, or use a machine with more"
        )


def _model_faults(model: ModelSection) -> Iterator[str]:
    if not model.path.is_dir():
        yield f"model.path = {str(model.path)!r}: no such directory; give a model directory in Hugging Face format"
        return
    if not (model.path / "config.json").is_file():
        yield f"model.path = {str(model.path)!r}: has no config.json; save the model with save_pretrained()"
    elif (positions := _max_positions(model.path / "config.json")) and positions < model.max_context:
        yield (
            f"model.max_context = {model.max_context}: the model in {model.path} has max_position_embeddings "
            f"{positions}; set it to that or less"
        )
    if not any(model.path.glob("*.safetensors")):
        yield f"model.path = {str(model.path)!r}: has no *.safetensors weights; save the model with save_pretrained()"
    for name in _TOKENIZER_FILES:
        if not (model.path / name).is_file():
            yield f"model.path = {str(model.path)!r}: has no {name}; save the tokenizer into the same directory"


def _max_positions(config_file: Path) -> int:
    try:
        return int(json.loads(config_file.read_text()).get("max_position_embeddings", 0))
    except (ValueError, TypeError):
        return 0


def _task_faults(config: RunConfig) -> Iterator[str]:
    for name, task in config.tasks.items():
        where = f"tasks.{name}.reward = {task.reward!r}"
        try:
            reward = resolve(task.reward)
        except ConfigError as error:
            yield f"{where}: {error}"
            continue
        if not inspect.iscoroutinefunction(reward):
            yield f"{where}: expected an async function (`async def score(episode)`), got {reward!r:.80}"
    if config.generation.engine == "echo":
        yield "generation.engine = 'echo': answers without a model, for benchmarks only; set it to 'vllm'"


def _identity_faults(config: RunConfig) -> Iterator[str]:
    """Why the run's checkpoints are not of the model that its config names."""
    newest = find_newest(config.run.path())
    if newest is None:
        return
    try:
        check_identity(newest.state.model, identify_model(config.model.path))
    except ConfigError as error:
        yield str(error)


def _directory_faults(directory: Path, resuming: bool, go_on: str) -> Iterator[str]:
    if resuming:
        return
    if directory.exists():
        yield (
            f"run.directory {str(directory)!r} exists already; go on with it by `rollart-hpc {go_on} {directory}`, or "
            "choose another with --set run.directory=PATH"
        )
        return
    parent = next(path for path in directory.parents if path.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        yield f"run.directory {str(directory)!r}: {parent} is not writable; choose another (--set run.directory=PATH)"
    free = shutil.disk_usage(parent).free
    if free < _MIN_FREE_BYTES:
        yield (
            f"run.directory {str(directory)!r}: {free >> 20} MB are free on its file system, at least "
            f"{_MIN_FREE_BYTES >> 20} MB are needed; free some or choose another with --set run.directory=PATH"
        )
