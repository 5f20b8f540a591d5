"""What an environment worker sees to on its node before it plays: isolation of sandboxes, and images that will be asked
for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from itertools import chain, islice

from rollart_hpc.config.node import NodeSettings
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.task_rows import TaskRows
from rollart_hpc.errors import ConfigError, NoSandboxError
from rollart_hpc.interfaces import EnvironmentProperties

_log = logging.getLogger(__name__)
_MAX_PREFETCHED = 64
"""Images; of a data set that names one for each row, the first ones. All others are pulled when they are asked for."""


async def require_isolation(properties: Mapping[str, EnvironmentProperties], settings: NodeSettings) -> None:
    """Tries sandboxes, where a task's environment opens them.

    Raises:
        NoSandboxError: none isolates here, and the config does not say that none has to.
    """
    sandboxed = [task for task, declared in properties.items() if declared.sandboxed]
    if not sandboxed:
        return
    from rollart_hpc.sandbox import available_runtime

    try:
        runtime = await asyncio.to_thread(available_runtime, settings.sandbox)
    except NoSandboxError as error:
        raise NoSandboxError(f"tasks {', '.join(sandboxed)} open sandboxes: {error}") from error
    if runtime is None:
        _log.warning("tasks %s execute the policy's text unisolated, with your rights", ", ".join(sandboxed))


async def prefetch_images(config: RunConfig, properties: Mapping[str, EnvironmentProperties]) -> None:
    """Pulls the images of the tasks; what cannot be pulled now is tried again, and told, where it is needed."""
    try:
        references = await asyncio.to_thread(_images, config, properties)
        if references:
            from rollart_hpc.images.prefetch import prefetch

            await asyncio.to_thread(prefetch, references, config.images)
    except Exception:
        # User-written data and registries: nothing here may end a worker that does without it.
        _log.exception("the images of the tasks could not be pulled in advance")


def _images(config: RunConfig, properties: Mapping[str, EnvironmentProperties]) -> list[str]:
    found = chain.from_iterable(_images_of(config, task, declared) for task, declared in properties.items())
    return list(islice(dict.fromkeys(found), _MAX_PREFETCHED))


def _images_of(config: RunConfig, task: str, declared: EnvironmentProperties) -> Iterator[str]:
    if declared.image:
        yield declared.image
    dataset = config.tasks[task].dataset
    if dataset is None or not declared.sandboxed:
        return
    try:
        rows = TaskRows(dataset)
        images = dict.fromkeys(image for row in rows.rows() if isinstance(image := row.get("image"), str) and image)
        rows.close()
    except ConfigError as error:
        _log.warning("tasks.%s.dataset: %s", task, error)
        return
    yield from islice(images, _MAX_PREFETCHED)
