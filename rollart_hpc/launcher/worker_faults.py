"""What is wrong with the classes of the user's own that the config names, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.serverless import HTTP, no_trigger
from rollart_hpc.data_plane.declarations import Serverless, declared_methods
from rollart_hpc.data_plane.worker_classes import routing_policy, worker_class
from rollart_hpc.errors import ConfigError
from rollart_hpc.types import Role


def worker_faults(config: RunConfig) -> Iterator[str]:
    """Every fault of `[workers]` and `generation.routing`, with its key and what to change."""
    for role in Role:
        named = getattr(config.workers, role)
        if named is None:
            continue
        try:
            declarations = declared_methods(worker_class(config, role)).values()
        except ConfigError as error:
            yield str(error)
            continue
        for declaration in declarations:
            if isinstance(declaration, Serverless):
                declared = declaration.serverless_url
                if declared not in config.serverless and not declared.startswith(HTTP):
                    yield f"workers.{role} = {named!r}: {no_trigger(declared)}"
    try:
        routing_policy(config)
    except ConfigError as error:
        yield str(error)
