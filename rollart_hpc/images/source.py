"""Where images come from, below the node's own copies: what every such place can do, and how it fails.

What a source gives is never trusted: whoever asked for a digest verifies it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from rollart_hpc.errors import ImageError
from rollart_hpc.images.manifest import Descriptor

CHUNK_BYTES = 1 << 20


class SourceError(ImageError):
    """This source cannot give it; another one may."""


class MissingError(SourceError):
    """The source does not have it, or not for us."""

    def __init__(self, text: str) -> None:
        super().__init__(text, retryable=False)


class SourceDownError(SourceError):
    """The source does not answer as it should; later it may."""

    def __init__(self, text: str) -> None:
        super().__init__(text, retryable=True)


class Source(Protocol):
    """A registry, a directory, an OCI layout."""

    @property
    def name(self) -> str:
        """As users know it."""
        ...

    def manifest(self, wanted: str) -> bytes:
        """A manifest or an index by tag or digest.

        Raises:
            SourceError: this source cannot give it.
        """
        ...

    def blob(self, descriptor: Descriptor, offset: int) -> Generator[bytes]:
        """The bytes from ``offset`` on; there may be more or fewer than the descriptor says.

        Raises:
            SourceError: this source cannot give them; what was given until then counts.
        """
        ...

    def discard(self, digest: str) -> None:
        """Is told that its bytes do not have this digest."""
        ...

    def close(self) -> None:
        """Frees connections."""
        ...
