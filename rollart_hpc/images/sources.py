"""From where an image is pulled, the nearest first: the second level, as far as the run has one, and its origin."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollart_hpc.config.node import ImagesSection
from rollart_hpc.images.breaker import NodeBreaker
from rollart_hpc.images.credentials import Credentials
from rollart_hpc.images.deadline import Deadline
from rollart_hpc.images.guarded import Guarded
from rollart_hpc.images.layout import Layout
from rollart_hpc.images.node_directory import NodeDirectory
from rollart_hpc.images.reference import LayoutReference, RegistryReference
from rollart_hpc.images.registry import Registry, registry_url
from rollart_hpc.images.shared import SharedDirectory
from rollart_hpc.images.source import Source

_PATIENCE_WITH_MIRROR = 2
_LONGEST_WAIT_FOR_MIRROR_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Those of one image."""

    registries: tuple[Source, ...]
    """They know tags; the origin is the last."""
    shared: SharedDirectory | None = None

    @property
    def nearest_first(self) -> tuple[Source, ...]:
        """All of them."""
        return (self.shared, *self.registries) if self.shared else self.registries


def shared_directory(path: Path, node: NodeDirectory) -> SharedDirectory:
    """The second level on the file system that all nodes share, as this node knows it."""
    name = f"the shared directory {path}"
    return SharedDirectory(path, NodeBreaker(node.breaker(name), name))


@contextmanager
def open_sources(
    reference: RegistryReference | LayoutReference, settings: ImagesSection, node: NodeDirectory, deadline: Deadline
) -> Generator[Sources]:
    """The sources of a reference; their connections end with the block.

    Raises:
        ImageError: the file of credentials is broken; not retryable.
    """
    if isinstance(reference, LayoutReference):
        yield Sources(registries=(Layout(reference.path),))
        return
    shared = shared_directory(settings.shared_directory, node) if settings.shared_directory else None
    credentials = Credentials.load(settings.credentials)
    with contextlib.ExitStack() as stack:
        registries: list[Source] = []
        if mirror := settings.mirrors.get(reference.registry):
            address = urlsplit(mirror)
            prefix = address.path.strip("/")
            source = Registry(
                f"{address.scheme}://{address.netloc}",
                f"{prefix}/{reference.repository}" if prefix else reference.repository,
                login=credentials.of(address.netloc),
                deadline=deadline,
                patience=_PATIENCE_WITH_MIRROR,
                longest_wait_s=_LONGEST_WAIT_FOR_MIRROR_S,
            )
            registries.append(Guarded(source, NodeBreaker(node.breaker(mirror), f"the mirror {mirror}")))
        login = credentials.of(reference.registry)
        origin = Registry(registry_url(reference.registry), reference.repository, login=login, deadline=deadline)
        registries.append(origin)
        for source in registries:
            stack.callback(source.close)
        yield Sources(registries=tuple(registries), shared=shared)
