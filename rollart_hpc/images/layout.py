"""An OCI layout on disk as a source: what skopeo, buildah, umoci and docker's buildx write."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from rollart_hpc.errors import ImageError
from rollart_hpc.images.manifest import MAX_MANIFEST_BYTES, TAG_ANNOTATION, Descriptor, parse_manifest
from rollart_hpc.images.reference import LayoutReference, hex_of
from rollart_hpc.images.source import CHUNK_BYTES, MissingError, SourceDownError


class Layout:
    """A directory with ``index.json`` and ``blobs/``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        """As users know it."""
        return f"the OCI layout {self._path}"

    def resolve(self, reference: LayoutReference) -> str:
        """The digest that its index has under a tag, or of the only image.

        Raises:
            ImageError: there is no such image.
        """
        entries = parse_manifest(self._read(self._path / "index.json"), self.name)
        if not isinstance(entries, tuple):
            raise ImageError(f"{self.name}: its index.json is no index; make the layout again", retryable=False)
        tags = {(one.annotations or {}).get(TAG_ANNOTATION, ""): one for one in entries}
        if reference.tag is None and len(entries) == 1:
            return entries[0].digest
        found = tags.get(reference.tag) if reference.tag else None
        if found is None:
            wanted = f"no image {reference.tag!r}" if reference.tag else f"{len(entries)} images"
            named = ", ".join(sorted(tag for tag in tags if tag)) or "none with a name"
            raise ImageError(f"{self.name} has {wanted}; give one of its tags: {named}", retryable=False)
        return found.digest

    def manifest(self, wanted: str) -> bytes:
        """A manifest by its digest."""
        return self._read(self._blob(wanted))

    def blob(self, descriptor: Descriptor, offset: int) -> Generator[bytes]:
        """The bytes in the layout, from ``offset`` on."""
        path = self._blob(descriptor.digest)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise self._translated(path, error) from error

    def discard(self, digest: str) -> None:
        """It is the user's: nothing is removed."""

    def close(self) -> None:
        """Holds nothing."""

    def _read(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                return file.read(MAX_MANIFEST_BYTES)
        except OSError as error:
            raise self._translated(path, error) from error

    def _blob(self, digest: str) -> Path:
        return self._path / "blobs" / "sha256" / hex_of(digest)

    def _translated(self, path: Path, error: OSError) -> ImageError:
        kind = MissingError if isinstance(error, FileNotFoundError | NotADirectoryError) else SourceDownError
        return kind(f"{self.name}: {path.name}: {error.strerror or error}")
