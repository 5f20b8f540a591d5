"""What a run declares of where its work goes: by the config, and by the methods of its worker classes."""

from __future__ import annotations

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.declarations import HardwareMapped, Serverless, declared_methods
from rollart_hpc.data_plane.worker_classes import worker_class
from rollart_hpc.resource_plane.binding import Declared
from rollart_hpc.types import Role

_GENERATES = "generate"
"""The method whose ``hw_mapping`` says where turns go (paper Listing 1)."""
_SCORES = "compute_rewards"


def declared_affinity(config: RunConfig) -> list[Declared]:
    """Of generation: the config's ``[affinity]``, then the ``hw_mapping`` of its worker class.

    Raises:
        ConfigError: the class cannot be imported, or is none of generation workers.
    """
    found = [Declared(hardware=config.affinity, source="affinity.{tag}")] if config.affinity else []
    if config.workers.actor_gen is None:
        return found
    of_class = worker_class(config, Role.ACTOR_GEN)
    declaration = declared_methods(of_class).get(_GENERATES)
    if isinstance(declaration, HardwareMapped):
        name = f"{of_class.__name__}.{_GENERATES}"
        found.append(Declared(hardware=declaration.hw_affinity, source=f"hw_affinity.{{tag}} of {name}"))
    return found


def declared_serverless(config: RunConfig) -> dict[str, str]:
    """By task whose reward is computed behind a URL, who says so: its ``reward_url``, else the worker class.

    Raises:
        ConfigError: the class cannot be imported, or is none of reward workers.
    """
    by_url = {name: f"tasks.{name}.reward_url" for name, task in config.tasks.items() if task.reward_url}
    if config.workers.reward is None:
        return by_url
    of_class = worker_class(config, Role.REWARD)
    if not isinstance(declared_methods(of_class).get(_SCORES), Serverless):
        return by_url
    return dict.fromkeys(config.tasks, f"{of_class.__name__}.{_SCORES}") | by_url
