"""A pull-through registry behind its breaker: when it is down it costs the pulls of a node one wait, not one each."""

from __future__ import annotations

from collections.abc import Generator

from rollart_hpc.images.breaker import NodeBreaker
from rollart_hpc.images.manifest import Descriptor
from rollart_hpc.images.source import Source


class Guarded:
    """A source that says at once that it is down, while it is."""

    def __init__(self, source: Source, breaker: NodeBreaker) -> None:
        self._source, self._breaker = source, breaker

    @property
    def name(self) -> str:
        """Of the source."""
        return self._source.name

    def manifest(self, wanted: str) -> bytes:
        """As the source."""
        with self._breaker.guarding():
            return self._source.manifest(wanted)

    def blob(self, descriptor: Descriptor, offset: int) -> Generator[bytes]:
        """As the source."""
        with self._breaker.guarding():
            yield from self._source.blob(descriptor, offset)

    def discard(self, digest: str) -> None:
        """As the source."""
        self._source.discard(digest)

    def close(self) -> None:
        """As the source."""
        self._source.close()
