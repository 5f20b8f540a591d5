"""What is wrong with the arguments and the endpoints of rewards, before anything is started."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from rollart_hpc.config.resolve import resolve
from rollart_hpc.config.schema import RunConfig, TaskSection
from rollart_hpc.config.serverless import url_fault
from rollart_hpc.errors import ConfigError


def reward_faults(config: RunConfig) -> Iterator[str]:
    """Every fault of ``reward_args``, of ``reward_url`` and of the secrets of ``[serverless]``, with its key."""
    for name, task in config.tasks.items():
        yield from _argument_faults(name, task)
        if (url := task.reward_url) and url not in config.serverless and (fault := url_fault(url)):
            yield f"tasks.{name}.reward_url = {url!r}: {fault}"
    yield from secret_faults(config)


def _argument_faults(name: str, task: TaskSection) -> Iterator[str]:
    try:
        function = resolve(task.reward)
    except ConfigError:
        return  # said with tasks.NAME.reward, as is one that is no async function
    if not inspect.iscoroutinefunction(function):
        return
    signature = inspect.signature(function)
    try:
        signature.bind(None, **task.reward_args)
    except TypeError as error:
        yield f"tasks.{name}.reward_args = {task.reward_args}: {error}; {task.reward} takes {signature}"


def secret_faults(config: RunConfig) -> Iterator[str]:
    """Every environment variable of a secret that is not set on this machine."""
    for declared, endpoint in config.serverless.items():
        for read in (endpoint.bearer, endpoint.secret):
            try:
                read()
            except ConfigError as error:
                yield f'serverless."{declared}": {error}'
