"""What the run's config may replace by classes of the user's own: each role's workers, and the routing policy."""

from __future__ import annotations

import inspect

from rollart_hpc.config.resolve import resolve
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.routing import PrefixAffinity, RoutingPolicy
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.errors import ConfigError, text_of
from rollart_hpc.types import Role

_OWN = {
    Role.ACTOR_TRAIN: "rollart_hpc.data_plane.actor_train:ActorTrainCls",
    Role.ACTOR_GEN: "rollart_hpc.data_plane.actor_gen:ActorGenCls",
    Role.ENVIRONMENT: "rollart_hpc.control_plane.environment_worker:EnvironmentCls",
    Role.REWARD: "rollart_hpc.data_plane.reward_worker:RewardCls",
}


def worker_class(config: RunConfig, role: Role) -> type[Worker]:
    """The class of a role's workers.

    Raises:
        ConfigError: what the config names cannot be imported, declares its methods wrongly, or is no subclass of the
            role's own class.
    """
    own = resolve(_OWN[role])
    named = getattr(config.workers, str(role))
    if named is None:
        return own
    try:
        found = resolve(named)
    except ConfigError as error:
        raise ConfigError(f"workers.{role} = {named!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, own)):
        raise ConfigError(
            f"workers.{role} = {named!r}: expected a subclass of rollart_hpc.distributed.{own.__name__}, "
            f"got {found!r:.80}"
        )
    return found


def routing_policy(config: RunConfig) -> RoutingPolicy:
    """The policy that chooses each request's generation worker.

    Raises:
        ConfigError: what the config names cannot be imported or made, or has no method ``choose``.
    """
    named = config.generation.routing
    if named is None:
        return PrefixAffinity()
    where, of_class = f"generation.routing = {named!r}", resolve(named)
    try:
        policy = of_class()
    except Exception as error:
        raise ConfigError(
            f"{where}: {type(error).__name__}: {text_of(error)}; expected a class that is made without arguments"
        ) from error
    choose = getattr(policy, "choose", None)
    if not callable(choose) or inspect.iscoroutinefunction(choose):
        raise ConfigError(
            f"{where}: has no plain method choose(route, workers, loads); see "
            "rollart_hpc.data_plane.routing.RoutingPolicy"
        )
    try:
        inspect.signature(choose).bind(None, (), {})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: choose: {error}; it is called as choose(route, workers, loads)") from error
    return policy
